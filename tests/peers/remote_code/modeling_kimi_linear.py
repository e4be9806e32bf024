import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_kimi_linear import KimiLinearConfig


class KimiDeltaAttention(nn.Module):
    """Linear attention with the delta rule; the decay of each head is a sigmoid gate under exp(A_log)."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = config.linear_attn_config["head_dim"]
        self.num_heads = config.linear_attn_config["num_heads"]
        width = self.num_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.f_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.b_proj = nn.Linear(config.hidden_size, self.num_heads, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.empty(self.num_heads, dtype=torch.float32).uniform_(1, 16)))
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def heads(self, x):
        return x.view(*x.shape[:-1], self.num_heads, self.head_dim).float()

    def forward(self, x):
        q = nn.functional.normalize(self.heads(self.q_proj(x)), dim=-1)
        k = nn.functional.normalize(self.heads(self.k_proj(x)), dim=-1)
        v, gate = self.heads(self.v_proj(x)), self.heads(self.f_proj(x))
        beta = torch.sigmoid(self.b_proj(x).float())
        decay = torch.exp(-5 * torch.sigmoid(self.A_log.view(self.num_heads, 1).exp() * gate))  # as the kernels view it
        state = x.new_zeros(x.shape[0], self.num_heads, self.head_dim, self.head_dim, dtype=torch.float32)
        out = []
        for t in range(x.shape[1]):
            state = decay[:, t, :, :, None] * state
            read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            new = beta[:, t, :, None] * (v[:, t] - read)
            state = state + k[:, t, :, :, None] * new[:, :, None, :]
            out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return self.o_proj(torch.stack(out, 1).flatten(2).to(x.dtype))


class KimiLinearPreTrainedModel(PreTrainedModel):
    config_class = KimiLinearConfig
    base_model_prefix = "model"

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(std=0.02)


class Layer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.self_attn = KimiDeltaAttention(config, layer_idx)

    def forward(self, x):
        return x + self.self_attn(x)


class KimiLinearModel(KimiLinearPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


class KimiLinearForCausalLM(KimiLinearPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = KimiLinearModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **rest):
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids)))

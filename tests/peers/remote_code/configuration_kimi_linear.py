from transformers import PretrainedConfig


class KimiLinearConfig(PretrainedConfig):
    model_type = "kimi_linear"

    def __init__(self, vocab_size=32, hidden_size=32, num_hidden_layers=2, linear_attn_config=None, **rest):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.linear_attn_config = linear_attn_config or {"num_heads": 2, "head_dim": 16}
        super().__init__(**rest)


class KimiK3Config(PretrainedConfig):
    model_type = "kimi_k3"

    def __init__(self, text_config=None, **rest):
        self.text_config = KimiLinearConfig(**(text_config or {}))
        super().__init__(**rest)

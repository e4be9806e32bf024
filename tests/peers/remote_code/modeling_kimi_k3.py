from transformers import PreTrainedModel

from .configuration_kimi_linear import KimiK3Config
from .modeling_kimi_linear import KimiLinearForCausalLM


class KimiK3ForConditionalGeneration(PreTrainedModel):
    config_class = KimiK3Config

    def __init__(self, config):
        super().__init__(config)
        self.language_model = KimiLinearForCausalLM(config.text_config)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, **rest):
        return self.language_model(input_ids)

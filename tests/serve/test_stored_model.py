from truecast.serve.stored_model import StoredModel


def test_kimi_k3_in_full(k3: StoredModel) -> None:
    assert (k3.family, k3.format, k3.dialect) == ("kimi_k3", "mxfp4", "compressed-tensors")
    assert k3.architecture == "KimiK3ForConditionalGeneration"
    assert (k3.layers, k3.heads, k3.experts, k3.experts_per_token) == (93, 96, 896, 16)
    assert k3.activation == "situ" and not k3.problems and k3.remote_code
    assert k3.weights.experts == 92 * 896 * 3 * 3584 * 3072 * 17 // 32  # 4.25 bits a weight


def test_what_a_request_of_kimi_k3_keeps(k3: StoredModel) -> None:
    assert k3.request is not None
    assert k3.request.kv_elements == 24 * 576 and not k3.request.kv_divided
    assert k3.request.state_elements == 69 * 96 * 128 * 128
    assert k3.request.convolution_elements == 69 * 96 * 128 * 3 * 3

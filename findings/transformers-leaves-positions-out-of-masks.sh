#!/bin/sh
# transformers 5.23.0: texts packed into one row are told apart by position ids that begin anew, which decoders with
# rotary positions turn into their mask when use_cache is False. GPT-OSS, AFMoE and Falcon use the positions for the rotation
# alone: a text sees the one before it, and nothing is said. Seen on 2026-11-29,
# the largest change of the second text's logits when the first one changes:
#   qwen3, gemma3 and gpt_neox 0.000; falcon 0.085, gpt_oss 0.237, afmoe 0.640
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.15.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers import AfmoeConfig, FalconConfig, Gemma3TextConfig, GPTNeoXConfig, GptOssConfig, Qwen3Config

transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__, "torch", torch.__version__)
size = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
size |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
gated = size | {"intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64}
experts = gated | {"num_local_experts": 4, "num_experts_per_tok": 2}
configs = {
    "qwen3": Qwen3Config(**gated),
    "gemma3": Gemma3TextConfig(**gated),
    "gpt_neox": GPTNeoXConfig(**size, intermediate_size=64),
    "gpt_oss": GptOssConfig(**experts),
    "afmoe": AfmoeConfig(**gated, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, num_dense_layers=1),
    "falcon": FalconConfig(**size),
}
torch.manual_seed(0)
first, other, second = (torch.randint(3, 96, (1, 10)) for _ in range(3))
positions = torch.arange(10).repeat(2)[None]
leaks = {}
for name, config in configs.items():
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(config).eval()

    @torch.no_grad()
    def behind(text):
        packed = torch.cat([text, second], 1)
        return net(packed, position_ids=positions, use_cache=False).logits[:, 10:]

    leaks[name] = float((behind(first) - behind(other)).abs().max())
    print(f"  {name}: {leaks[name]:.3f}")
apart = {name for name, leak in leaks.items() if leak < 1e-6}
sys.exit(apart != {"qwen3", "gemma3", "gpt_neox"})
PYTHON

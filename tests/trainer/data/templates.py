"""Chat templates of the shapes that models bring, written for the tests."""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"
)
MISTRAL = (  # the system prompt goes before the last question; there is no generation prompt
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set last = loop.index0 >= loop.length - 2 + (rest[-1].role == 'user') %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + (system + '\n\n' if last and system is defined else '') + m.content }}"
    "{{ ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
THINKING = (  # thoughts of earlier answers are left out
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKING = (  # the generation prompt ends with a word that no answer begins with
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|end|>' + m.content + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|><think>' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{{ '\n' }}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)

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
TOOLS = (  # Qwen's and Hermes': tools in the system prompt, calls and results in tags; a call hides no content
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) or "
    "(m.role == 'assistant' and not m.tool_calls) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant' }}{% if m.content %}{{ '\n' + m.content }}{% endif %}"
    "{% for call in m.tool_calls %}{% set call = call.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' }}{{ call.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content }}"
    "{{ '\n</tool_response><|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ZEPHYR = (  # TinyLlama's: knows three roles, and says nothing of others
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|start|>user\n' + m.content + eos_token }}"
    "{% elif m.role == 'system' %}{{ '<|start|>system\n' + m.content + eos_token }}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant\n' + m.content + eos_token }}{% endif %}{{ '\n' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}{% endfor %}"
)
JSON_RESULTS = (  # Llama 3.1's: one call, which hides the content beside it; results are JSON
    "{{ bos_token }}{% for m in messages %}{% if m.tool_calls is defined %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{% set call = m.tool_calls[0].function %}"
    '{{ \'<|start|>assistant<|end|>\n\n{"name": "\' + call.name + \'", "parameters": \' }}'
    "{{ call.arguments | tojson }}}<|eot|>{% elif m.role == 'tool' %}<|start|>ipython<|end|>\n\n"
    "{{ m.content | tojson }}<|eot|>"
    "{% else %}{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
WIRE = (  # DeepSeek V3's: the arguments of a call are joined as text
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for call in m.tool_calls %}"
    "{{ '<|start|>' + call.function.name + '\n' + call.function.arguments + '<|eot|>' }}{% endfor %}"
    "{% else %}{{ '<|start|>' + m.role + '<|end|>' + m.content + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
PRINTED = WIRE.replace("+ call.function.arguments + '<|eot|>' }}", "}}{{ call.function.arguments }}<|eot|>")
"""Functionary's: an object would be written as Python writes it."""
FORGETFUL = CHATML.replace("m.content", "(m.content.split('</think>') | last if m.role == 'assistant' else m.content)")
"""DeepSeek R1's: thoughts are left out everywhere."""
LAST_TOOLS = (  # Mistral's: tools and system prompt stand before the last question
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == (messages | map(attribute='role') | list | length - 1 - "
    "(messages | map(attribute='role') | list)[::-1].index('user')) %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'tool' %}{{ '[RESULTS]' + m.content + '[/RESULTS]' }}"
    "{% elif m.tool_calls is defined %}[CALLS]{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}"
    "{{ eos_token }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
CUT = CHATML.replace("m.content", "(m.content.split('###') | first if m.role == 'user' else m.content)")
FRONT = CUT.replace("first", "last")
TAILS = TOOLS.replace("\n<tool_response>\n' + m.content", "\n<tool_response>\n' + m.content[:20]")
THOUGHTS = CHATML.replace("m.role + '\n'", "m.role + '\n' + (m.thinking or '').split('###')[0]")

GLM = (  # GLM-4.5's: the next role's token ends a turn; contents are trimmed; thoughts are those of the last answer
    "<s>{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|im_start|>\n{{ m.content }}{% elif m.role == 'assistant' %}<|start|>"
    "{% if loop.index0 > ns.last and m.reasoning_content %}{{ '\n' }}<think>{{ m.reasoning_content.strip() }}</think>"
    "{% else %}{{ '\n<think></think>' }}{% endif %}{% if m.content.strip() %}{{ '\n' + m.content.strip() }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{{ '\n<tool_call>' + call.function.name }}\n"
    "{{ call.function.arguments | tojson }}\n</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|end|>\n{{ m.content }}{% else %}<|eot|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
NEMOTRON = (  # it asks with an open thought, with which no answer begins; calls come without a content
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>Assistant\n{{ m.content.strip() }}"
    "{% if m.tool_calls %}<TOOLCALL>[{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}]</TOOLCALL>"
    "{% endif %}{{ '\n' }}<|eot|>\n{% elif m.role == 'tool' %}<|start|>User\n"
    "<TOOL_RESPONSE>{{ m.content }}</TOOL_RESPONSE>\n"
    "{% else %}<|start|>{{ m.role | capitalize }}\n{{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>Assistant\n<think>\n{% endif %}"
)
COMMAND_R7B = (  # writes the prompt for the next answer whether it is asked to or not
    "{% for m in messages %}<|start|>{{ '<|im_start|>' if m.role == 'assistant' else '<|end|>' }}{{ m.content | trim }}"
    "</s>{% endfor %}<|start|><|im_start|>"
)
PHI = (  # with the end of text behind the last answer
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
GPT_OSS = (  # the last answer ends otherwise than earlier ones, a call otherwise than both
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% if m.thinking %}<|start|>assistant<|im_start|>analysis:{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to={{ m.tool_calls[0].function.name }}:{{ m.tool_calls[0].function.arguments | tojson }}<|eot|>"
    "{% else %}{% if loop.last and m.thinking %}<|start|>assistant<|im_start|>analysis:{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant<|im_start|>final:{{ m.content }}{{ '<|im_end|>' if loop.last else '<|end|>' }}"
    "{% endif %}"
    "{% else %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
QWEN3 = (  # thoughts in a content or beside it, written again with white space of its own; earlier ones are left out
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}{% set said = m.content %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ said.lstrip('\n') }}"
    "{% else %}{{ said }}{% endif %}<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN35 = QWEN3.replace(
    "{% if add_generation_prompt %}<|im_start|>assistant\n",
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n",
)
"""Its prompt opens the thoughts."""
UNMARKED_END = MARKED.replace("<|im_end|>{% endgeneration %}{{ '\n' }}", "{% endgeneration %}<|im_end|>{{ '\n' }}")
MARKED_WHOLE = (  # SmolLM3's
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
ENDLESS = (
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
OPEN = CHATML.replace("<|im_end|>", "")
JOINED = CHATML.replace("m.content", "(m.content.split() | join(' ') if m.role == 'assistant' else m.content)")
"""Every white space becomes one space."""
GEMMA4 = (  # behind the result of a call it asks for nothing, and writes the answer with a head nevertheless
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>{{ m.content }}<|end|>{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}<|eot|>{% endfor %}{% if not m.tool_calls %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LAST_MARKED = (  # marks are around the last answer alone
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if loop.index0 == ns.last %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)

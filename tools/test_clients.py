#!/usr/bin/env python3
"""test_clients.py HYDRAHEAD MODEL: the packages openai and langchain-openai, unmodified, and curl against `hydrahead serve MODEL` (a model with a chat template).
For `make test-clients`."""
import json
import subprocess
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from openai import APIStatusError, OpenAI

server = subprocess.Popen([sys.argv[1], "serve", sys.argv[2], "--port", "0", "--ctx", "2048", "-q"], stdout=subprocess.PIPE, text=True)
try:
    base = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    c = OpenAI(base_url=base, api_key="none")
    question = [{"role": "user", "content": "What is the capital of France?"}]

    whole = c.chat.completions.create(model="m", messages=question, temperature=0, max_tokens=24, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2

    pieces, usage = "", None
    for event in c.chat.completions.create(model="m", messages=question, temperature=0, max_tokens=24, stream=True, stream_options={"include_usage": True}):
        pieces += (event.choices and event.choices[0].delta.content) or ""
        usage = event.usage or usage
    assert pieces == text, (pieces, text)
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens, usage

    completion = c.completions.create(model="m", prompt=["The capital of Spain is", "Two and two is"], max_tokens=4, temperature=0)
    assert len(completion.choices) == 2 and "Madrid" in completion.choices[0].text, completion

    answer = c.chat.completions.create(model="m", messages=[{"role": "user", "content": "Give me a JSON object about a cat."}], max_tokens=300, temperature=0,
                                       response_format={"type": "json_schema", "json_schema": {"name": "cat", "schema": {
                                           "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
                                           "required": ["name", "age"]}}})
    cat = json.loads(answer.choices[0].message.content)
    assert isinstance(cat["age"], int), cat

    assert [m.id for m in c.models.list().data]
    try:
        c.embeddings.create(model="m", input="a")
        raise AssertionError("embeddings were made")
    except APIStatusError as e:
        assert e.status_code == 501

    curl = subprocess.run(["curl", "-sf", base + "/models"], capture_output=True, text=True)
    assert json.loads(curl.stdout)["object"] == "list"

    chain = ChatOpenAI(base_url=base, api_key="none", model="m", temperature=0, max_tokens=24, stream_usage=True)
    messages = [SystemMessage("You answer in one sentence. " * 12), HumanMessage("What is the capital of France?")]
    said = chain.invoke(messages)
    assert "Paris" in said.content and said.response_metadata["finish_reason"] in ("stop", "length"), said
    assert said.usage_metadata["total_tokens"] == said.usage_metadata["input_tokens"] + said.usage_metadata["output_tokens"]
    parts = list(chain.stream(messages))
    assert "".join(p.content for p in parts) == said.content and any(p.usage_metadata for p in parts), parts
    second = chain.invoke(messages + [AIMessage(said.content), HumanMessage("And of Spain?")])
    assert second.usage_metadata["input_token_details"]["cache_read"] > 0, second
    assert len(chain.batch(["Say one.", "Say two.", "Say three."])) == 3
    print("openai-python, langchain-openai and curl: all as expected")
finally:
    server.terminate()
    assert server.wait(30) == 0

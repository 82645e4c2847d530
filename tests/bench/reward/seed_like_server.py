"""A reward server as one writes it first: one forward a request, inside of `async def`. For comparison only.

python seed_like_server.py MODEL_DIR PORT THREADS
"""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Pair(BaseModel):
    """What is scored."""

    prompt: str
    response: str


def create_app(path: str) -> FastAPI:
    """The application, its model loaded."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32, num_labels=1).eval()
    app = FastAPI()

    @app.post("/score")
    async def score(pair: Pair) -> dict[str, float]:
        inputs = tokenizer(pair.prompt, pair.response, return_tensors="pt", truncation=True, max_length=512)
        with torch.no_grad():
            return {"score": float(model(**inputs).logits[0].item())}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    uvicorn.run(create_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")

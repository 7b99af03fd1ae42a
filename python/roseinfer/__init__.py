"""roseinfer: small language models on CPUs and NVIDIA GPUs, by its C library.

    from roseinfer import LLM, SamplingParams

    with LLM("models/rose-tiny") as llm:
        for result in llm.generate(["Once upon a time"], SamplingParams(temperature=0.8, seed=1, max_tokens=40)):
            print(result.outputs[0].text)

Names and forms are those of vLLM where both have the same thing. AsyncLLM is the same for asyncio. Every error of the
library is a RoseError."""
from ._native import (ClosedError, EngineFailedError, InternalError, InvalidArgumentError, ModelError, OutOfMemoryError,
                      QueueFullError, RequestFailedError, RoseError, library)
from .async_llm import AsyncLLM
from .llm import LLM, Stream
from .params import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, PoolingOutput, PoolingParams,
                     PoolingRequestOutput, RequestMetrics, RequestOutput, SamplingParams, ScoringOutput,
                     ScoringRequestOutput, StreamPiece, StructuredOutputsParams)
from .tokenizer import Tokenizer

__version__: str = library().version().decode()

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "StructuredOutputsParams", "RequestOutput", "CompletionOutput",
           "Logprob", "Stream", "StreamPiece", "EmbeddingRequestOutput", "EmbeddingOutput", "PoolingParams",
           "PoolingRequestOutput", "PoolingOutput", "ScoringRequestOutput", "ScoringOutput", "RequestMetrics", "Tokenizer",
           "RoseError",
           "InvalidArgumentError", "ModelError", "OutOfMemoryError", "QueueFullError", "EngineFailedError",
           "InternalError", "RequestFailedError", "ClosedError"]

"""Drivers and runtimes that no hook knows: the report names those that the application imports."""

from __future__ import annotations

from collections.abc import Collection

_DATABASES = (
    "psycopg2", "pg8000", "aiopg", "mysql.connector", "pymysql", "MySQLdb", "aiomysql", "asyncmy", "pymssql", "pyodbc",
    "aioodbc", "oracledb", "cx_Oracle", "ibm_db", "duckdb", "pymongo", "motor", "cassandra.cluster",
    "clickhouse_driver", "neo4j", "aerospike", "lmdb", "rocksdict", "pysqlite3", "apsw", "sqlcipher3",
)  # fmt: skip
_SERVICES = (
    "valkey", "pymemcache", "aiomcache", "pylibmc", "bmemcached", "coredis", "aiohttp.client", "grpc", "pycurl",
    "tornado.httpclient", "nats", "zmq", "pika", "aio_pika", "kafka", "confluent_kafka", "aiokafka",
)  # fmt: skip
"""Not websockets: uvicorn itself imports it."""
_MODELS = (
    "tensorflow", "tflite_runtime", "ai_edge_litert", "jax", "paddle", "mxnet", "tensorrt", "llama_cpp", "ctranslate2",
    "vllm", "onnxruntime_genai", "spacy", "fasttext", "gensim", "statsmodels", "prophet", "h2o",
)  # fmt: skip
_OVER = {"sqlalchemy": "SQLAlchemy", "keras": "Keras", "transformers": "transformers' generate()"}
"""What hides some of these, and has a hook."""


def unhooked(modules: Collection[str]) -> tuple[str, ...]:
    """Name those that are imported, in one note; none where there are none.

    Args:
        modules: names of everything that is imported.
    """
    found = [name for name in (*_DATABASES, *_SERVICES, *_MODELS) if name in modules]
    if not found:
        return ()
    seen = [shown for name, shown in _OVER.items() if name in modules]
    return (
        f"imported, but not hooked: {', '.join(found)}. Their calls count as the code that makes them; seen is what"
        f" goes through {' or '.join([*seen, 'an OpenTelemetry instrumentation'])}",
    )

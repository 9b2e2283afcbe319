"""Writes the files of this directory: the same texts in every way that Arrow writes them.

    pip install pyarrow && python3 make.py
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

here = Path(__file__).parent
texts = [f"text {i}: caf\u00e9 " + "la " * (i % 7) for i in range(200)]
texts[3] = None
texts[5] = ""
texts[7:60] = ["the same"] * 53
nested = pa.array([[{"text": "not this"}]] * 200)
table = pa.table({"nested": nested, "id": list(range(200)), "text": texts})
schema = table.schema.set(2, pa.field("text", pa.string(), nullable=False))
required = pa.table({**{name: table[name] for name in ("nested", "id")}, "text": [t or "" for t in texts]}, schema)

for name, data, options in [
    ("snappy", table, dict(compression="snappy")),
    ("zstd-v2", table, dict(compression="zstd", data_page_version="2.0", data_page_size=500)),
    ("gzip-plain", table, dict(compression="gzip", use_dictionary=False)),
    ("none-groups", table, dict(compression="none", row_group_size=37, data_page_size=100)),
    ("required", required, dict(compression="snappy", use_dictionary=False)),
    ("brotli", table, dict(compression="brotli")),
]:
    pq.write_table(data, here / f"{name}.parquet", **options)

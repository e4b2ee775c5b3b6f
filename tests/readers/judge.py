"""Reads Delta tables with four independent readers, for the tests to compare.

One JSON request a line on standard input, one JSON answer a line on standard output:

    {"engine": "duckdb", "path": "/lake/public/t", "version": 3, "columns": ["id", "v"]}
    {"columns": ["id", "v"], "rows": [["1", null], ...]}   or   {"error": "..."}

`engine` is duckdb, deltalake, polars or spark. `version` may be left out (the newest) or replaced
by `timestamp` (ISO 8601 with a zone: the newest version that is not later). `columns` may be left
out (all). A path `s3://…` comes with `s3`: `endpoint`, `key`, `secret`, `region`; DuckDB and deltalake
read it. `"digest": true` answers `count` and `digest` instead of `rows`. With `sql` instead of
`path`, DuckDB and Spark run a statement and answer with its rows (Spark does also what other
engines do to our tables: DELETE, OPTIMIZE, RESTORE). `sample` instead of `path` is the table of
`sample.py`. Rows are sorted texts, see `canonical.py`.

A reader is loaded at its first request and kept. The program ends when its input does.
"""

import datetime
import glob
import hashlib
import json
import os
import shutil
import sys
from urllib.parse import unquote, urlparse

sys.dont_write_bytecode = True


def texts(value):
    return "'" + value.replace("'", "''") + "'"


def names(columns):
    return ", ".join('"' + c.replace('"', '""') + '"' for c in columns) if columns else "*"


class DuckDb:
    def __init__(self):
        import duckdb
        import duckdb_extension_delta

        home = os.path.dirname(duckdb_extension_delta.__file__)
        [extension] = glob.glob(f"{home}/extensions/*/delta.duckdb_extension")
        self.s3 = None
        self.connection = duckdb.connect(config={"allow_unsigned_extensions": True})
        self.connection.execute(f"LOAD {texts(extension)}")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("SET threads = 2")

    def open_s3(self, s3):
        if s3 == self.s3:
            return
        import duckdb_extension_httpfs

        home = os.path.dirname(duckdb_extension_httpfs.__file__)
        [extension] = glob.glob(f"{home}/extensions/*/httpfs.duckdb_extension")
        self.connection.execute(f"LOAD {texts(extension)}")
        host = s3["endpoint"].removeprefix("http://")
        self.connection.execute(
            f"CREATE OR REPLACE SECRET judged (TYPE s3, KEY_ID {texts(s3['key'])}, "
            f"SECRET {texts(s3['secret'])}, REGION {texts(s3['region'])}, "
            f"ENDPOINT {texts(host)}, URL_STYLE 'path', USE_SSL false)")
        self.s3 = s3

    def read(self, path, version, timestamp, columns, s3=None):
        if s3:
            self.open_s3(s3)
        if timestamp is not None:
            # DuckDB travels by version only: the log's own times say which.
            version = version_at(path, timestamp)
        at = "" if version is None else f", version => {int(version)}"
        return self.sql(f"SELECT {names(columns)} FROM delta_scan({texts(path)}{at})")

    def sql(self, statement):
        return arrow_of(self.connection.execute(statement))


def arrow_of(result):
    import pyarrow as pa

    if result.description is None:
        return pa.table({})
    found = result.arrow()
    return found.read_all() if hasattr(found, "read_all") else found


class DeltaLake:
    def read(self, path, version, timestamp, columns, s3=None):
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        options = s3 and {
            "AWS_ACCESS_KEY_ID": s3["key"], "AWS_SECRET_ACCESS_KEY": s3["secret"],
            "AWS_REGION": s3["region"], "AWS_ENDPOINT_URL": s3["endpoint"],
            "AWS_ALLOW_HTTP": "true"}
        table = DeltaTable(path, version=version, storage_options=options)
        if timestamp is not None:
            table.load_as_version(timestamp)
        query = f"SELECT {names(columns)} FROM t"
        return pa.table(QueryBuilder().register("t", table).execute(query))


def version_at(path, timestamp):
    from deltalake import DeltaTable

    table = DeltaTable(path)
    table.load_as_version(timestamp)
    return table.version()


class Polars:
    def read(self, path, version, timestamp, columns):
        import polars

        if timestamp is not None:
            version = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
        frame = polars.scan_delta(path, version=version)
        if columns:
            frame = frame.select(columns)
        return frame.collect().to_arrow()


class Spark:
    def __init__(self):
        setup = json.loads(os.environ["TIDEGATE_READERS"])
        if not setup.get("jars"):
            raise RuntimeError("Spark was not set up (scripts/setup-python says why)")
        os.environ["JAVA_HOME"] = setup["java_home"]
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        for outer in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
            os.environ.pop(outer, None)
        from pyspark.sql import SparkSession

        # One small session for everything: untuned, the first table takes minutes.
        settings = {
            "spark.jars": ",".join(setup["jars"]),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog":
                "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.driver.memory": "768m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions":
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC "
                f"-Dderby.system.home={os.getcwd()}",
            "spark.local.dir": os.getcwd(),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": os.path.join(os.getcwd(), "warehouse"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        builder = SparkSession.builder.master("local[2]").appName("judge")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()

    def read(self, path, version, timestamp, columns):
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        if timestamp is not None:
            reader = reader.option("timestampAsOf", timestamp)
        frame = reader.load(path)
        if columns:
            frame = frame.select(*("`" + c.replace("`", "``") + "`" for c in columns))
        return frame.toArrow()

    def sql(self, statement):
        frame = self.session.sql(statement)
        if statement.lstrip().upper().startswith(("OPTIMIZE", "REORG")):
            # Done by now; what it tells about itself does not fit into Arrow.
            import pyarrow as pa

            return pa.table({})
        return frame.toArrow()


ENGINES = {"duckdb": DuckDb, "deltalake": DeltaLake, "polars": Polars, "spark": Spark}
loaded = {}


def answer(request):
    import canonical

    if "sample" in request:
        import sample

        sample.write(request["sample"])
        return {"columns": [], "rows": []}
    name = request["engine"]
    if name not in loaded:
        loaded[name] = ENGINES[name]()
    if "sql" in request:
        table = loaded[name].sql(request["sql"])
    else:
        path = request["path"]
        if path.startswith("file://"):
            path = unquote(urlparse(path).path)
        more = {"s3": request["s3"]} if "s3" in request else {}
        table = loaded[name].read(path, request.get("version"), request.get("timestamp"),
                                  request.get("columns"), **more)
    rows = canonical.rows(table)
    found = {"columns": table.column_names}
    if request.get("digest"):
        lines = "\n".join(json.dumps(row) for row in rows)
        return found | {"count": len(rows), "digest": hashlib.sha256(lines.encode()).hexdigest()}
    return found | {"rows": rows}


def main():
    # Readers print to standard output when they please; answers have a channel of their own.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            found = answer(json.loads(line))
        except BaseException as e:  # The judge outlives what one table does to one reader.
            if isinstance(e, KeyboardInterrupt):
                break
            found = {"error": f"{type(e).__name__}: {e}"}
        channel.write(json.dumps(found) + "\n")
        channel.flush()
    if "spark" in loaded:
        loaded["spark"].session.stop()
    # The folder we were started in is ours; whoever started us may be gone.
    if os.environ.get("TIDEGATE_JUDGE_FOLDER") == os.getcwd():
        shutil.rmtree(os.getcwd(), ignore_errors=True)


main()

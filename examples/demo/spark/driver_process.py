"""The program of one driver: its own Spark session, and the pipeline as a stream until SIGTERM.

Started by :mod:`demo.spark.drivers`, in an empty folder. The first order has the brokers and the folder.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings

from demo.servers import DATABASE
from demo.spark.handling import NAME
from seekpoint.errors import Fenced
from seekpoint.spark import Env, run
from seekpoint.testing import obey, receive, start_spark

FENCED = 4  # exit code: another driver has the partitions


def main() -> None:
    """Run until SIGTERM, or until another driver has claimed the partitions."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)  # pyspark's, of pandas, which nothing here uses
    order = receive()
    obey()
    os.chdir(order["folder"])
    stop = threading.Event()
    with start_spark("local[2,4]") as spark:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        run(
            spark,
            NAME,
            kafka=order["kafka"],
            database=Env(DATABASE),
            trigger=0.2,
            max_records=order["max_records"],
            stop=stop,
        )


if __name__ == "__main__":
    try:
        main()
    except Fenced as fenced:
        logging.getLogger(__name__).warning("fenced: %s", fenced)
        sys.exit(FENCED)

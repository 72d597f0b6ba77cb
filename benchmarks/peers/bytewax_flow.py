"""A flow of Bytewax: records from a source, by key through a map with state, into nothing."""

import sys
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

sys.path.insert(0, str(Path(__file__).parent))

from counting import counter

KEYS = [f"p{number}" for number in range(100)]
COUNTER = counter()


class Records(StatelessSourcePartition):
    def next_batch(self):
        return [(key, bytes(48)) for key in KEYS]


class Source(DynamicSource):
    def build(self, step_id, worker_index, worker_count):
        return Records()


class Nothing(StatelessSinkPartition):
    def write_batch(self, items):
        pass


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Nothing()


def handle(handled, padding):
    COUNTER[0] += 1
    return (handled or 0) + 1, padding


flow = Dataflow("passers")
op.output("out", op.stateful_map("handle", op.input("in", flow, Source()), handle), Sink())

if __name__ == "__main__":
    cluster_main(flow, [], 0)

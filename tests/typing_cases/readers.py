"""Clients and stores: what is read from outside of a job has static types where it can."""

import datetime as dt
from typing import NamedTuple, assert_type

import statekit as sk
from statekit.query import AsyncClient, Client, WatchEvent


class Payment(NamedTuple):
    account: str
    cents: int


job = sk.Job("bank")
payments = job.source("payments", Payment)
store = job.add(sk.KVStore("balances", key=str, value=int))
balances = store.get(payments, key="account").sink("balances")
run = job.run({"payments": []})
assert_type(run[balances][0].key, str)
assert_type(run[balances][0].value, int | None)
known = store.get_with(payments, key="account", name="known").sink("known")
assert_type(run[known][0].record, Payment)
store.put(payments, key="account", value="cents")

client = Client("http://127.0.0.1:8321", functions=[store.function], retries=2)
assert_type(client, Client)
client.get("bank", "balances", "value", "ann", epoch=5, wait=0.5)
client.get("bank", "balances", "value", "ann", as_of=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
for event in client.follow("bank", "balances", "value"):
    assert_type(event, WatchEvent)
sk.Replica("checkpoint", functions=[store.function])
sk.feed("checkpoint", "balances", "value", function=store.function)

client.get("bank", "balances", "value", "ann", epochs=5)  # error: Unexpected keyword argument
client.get("bank", "balances", "value", "ann", epoch="five")  # error: incompatible type "str"
print(run[balances][0].valu)  # error: has no attribute "valu"
client.no_such_method()  # error: has no attribute "no_such_method"
Client(1)  # error: incompatible type "int"
Client("http://127.0.0.1:8321", nonsense=4)  # error: Unexpected keyword argument "nonsense"
AsyncClient("http://127.0.0.1:8321").close("now")  # error: Too many arguments
print(store.functions)  # error: has no attribute "functions"

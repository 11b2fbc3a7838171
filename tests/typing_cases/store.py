"""The key-value store, and records with fields of others."""

from __future__ import annotations

from typing import NamedTuple, assert_type

import statekit as sk


class Payment(NamedTuple):
    account: str
    cents: int


class Balance(NamedTuple):
    key: str
    value: int | None


class Bill(NamedTuple):
    payer: str
    cents: int


def paid(balance: int | None, payment: Payment) -> int:
    return (balance or 0) + payment.cents


def renamed(balance: str | None, payment: Payment) -> str:
    return payment.account


job = sk.Job("bank")
payments = job.source("payments", Payment)
accounts = job.add(sk.KVStore("accounts", key=str, value=int))
assert_type(accounts, sk.KVStore[str, int])
assert_type(accounts.get(payments, key="account", into=Balance), sk.Stream[Balance])
put = accounts.put(payments, key="account", value="cents").sink("put")
assert_type(job.run({"payments": []})[put][0].value, int)
accounts.update(payments, paid, key="account")
accounts.update(payments, renamed, key="account")  # error: Argument 2 to "update" of "KVStore"
accounts.get(job, key="account")  # error: No overload variant of "get"
accounts.get(payments)  # error: No overload variant of "get"
sk.KVStore("wrong", key="str", value=int)  # error: Argument "key" to "KVStore"
job.add(payments)  # error: Value of type variable "P" of "add"

assert_type(payments.select(Bill, payer="account"), sk.Stream[Bill])
payments.select(Bill, payer=1)  # error: Argument "payer" to "select" of "Stream"
assert_type(payments.record_class, type[Payment])

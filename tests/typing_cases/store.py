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
assert_type(payments.select(Bill, payer=sk.expr("upper(account)")), sk.Stream[Bill])
payments.select(Bill, payer=1)  # error: Argument "payer" to "select" of "Stream"
assert_type(payments.record_class, type[Payment])

large = sk.col("cents") > 1000
assert_type(large & (sk.col("account") == "ada") | ~large, sk.Expression)
assert_type(1 - sk.col("cents") * 2 / sk.lit(3), sk.Expression)
assert_type(payments.filter(large), sk.Stream[Payment])
assert_type(payments.filter("cents > 1000", name="larger"), sk.Stream[Payment])
assert_type(payments.filter(lambda payment: payment.cents > 1), sk.Stream[Payment])
payments.filter(1)  # error: Argument 1 to "filter" of "Stream"
payments.filter(lambda payment: payment.cent > 1)  # error: "Payment" has no attribute "cent"
sk.col(1)  # error: Argument 1 to "col"

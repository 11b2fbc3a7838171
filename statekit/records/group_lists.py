"""Lists of kept values per group of rows: all values, the value that arrived first,
or first records (in `record_order`)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa
import pyarrow.compute as pc


class GroupLists(ABC):
    """Strategy that keeps a list of values for each group of rows."""

    @abstractmethod
    def of_groups(self, rows: pa.ListArray, column: pa.ChunkedArray) -> pa.ListArray:
        """Return the list of each group.

        Parameters:
            rows: the numbers of the rows of each group. Each row is in one group.
            column: a value of each row, or a list of them.
        """


class AllValues(GroupLists):
    """Keeps all values of each group, in row order. The column contains lists of values.

    >>> lists = pa.chunked_array([[["a"], [], ["b", "c"], ["d"]]])
    >>> AllValues().of_groups(pa.array([[0, 3], [1], [2]]), lists).to_pylist()
    [['a', 'd'], [], ['b', 'c']]
    """

    def of_groups(self, rows: pa.ListArray, column: pa.ChunkedArray) -> pa.ListArray:
        lists = column.combine_chunks().take(rows.flatten())
        ends = offsets(pc.list_value_length(lists))
        of_groups = ends.take(offsets(pc.list_value_length(rows)))
        return pa.ListArray.from_arrays(of_groups, lists.flatten())


class FirstArrived(GroupLists):
    """Keeps the first value of each group, in row order. A list that the column contains has one
    value.

    >>> letters = pa.chunked_array([list("abcd")])
    >>> FirstArrived().of_groups(pa.array([[0, 3], [2]]), letters).to_pylist()
    [['a'], ['c']]
    """

    def of_groups(self, rows: pa.ListArray, column: pa.ChunkedArray) -> pa.ListArray:
        values = column.combine_chunks()
        if pa.types.is_list(values.type):
            values = values.flatten()
        first = values.take(pc.list_element(rows, 0))
        return pa.ListArray.from_arrays(offsets(pa.repeat(1, len(first))), first)


def offsets(sizes: pa.Array) -> pa.Array:
    """Return the offsets of consecutive lists of these sizes.

    >>> offsets(pa.array([2, 0, 1])).to_pylist()
    [0, 2, 2, 3]
    """
    sums = pc.cumulative_sum(sizes.cast(pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), sums])

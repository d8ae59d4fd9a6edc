"""vectors/make.py, which has the same name as the program here: QUIC connection ids and Maglev tables, worked out
apart."""

import functools
import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[3] / "vectors"
sys.path.append(str(_FOLDER))
_spec = importlib.util.spec_from_file_location("vectors_make", _FOLDER / "make.py")
_make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_make)

connection_id, connection_id_key, server_id = _make.connection_id, _make.connection_id_key, _make.server_id


@functools.cache
def maglev_entries(size, weights):
    """The backends' names by slot; weights are pairs of name and weight, in order of name."""
    names = [name for name, _ in weights]
    permutations = [_make.permutation_of(name, size) for name in names]
    return [names[entry] for entry in _make.populate(permutations, [weight for _, weight in weights], size)]

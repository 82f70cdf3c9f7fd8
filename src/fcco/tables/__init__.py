"""Tables: from columns of any kind to the scores of a network.

Example:
    >>> from fcco.tables import TableEncoder, TableNetwork
    >>> encoder = TableEncoder()
    >>> x = encoder.fit_transform({"age": [31, 45, None, 28], "town": ["Bonn", "Kiel", "Bonn", "Kiel"]})
    >>> network = TableNetwork(encoder.to_dict(), outputs=1)
    >>> tuple(network(x).shape)
    (4, 1)
"""

from ._encoder import TableEncoder
from ._errors import TableError, TableTypeError, TableWarning
from ._network import TableNetwork

__all__ = ["TableEncoder", "TableError", "TableNetwork", "TableTypeError", "TableWarning"]

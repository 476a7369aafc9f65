"""Put the dumps of several processes together: one value for each distributed tensor."""

from ._distributed import joined_if_equal
from ._join import is_same_bits as has_same_bits
from ._layouts import LearnedLayout
from ._part_layout import layout_of

__all__ = ["LearnedLayout", "has_same_bits", "joined_if_equal", "layout_of"]

from export.passes import *

from export.backends import *

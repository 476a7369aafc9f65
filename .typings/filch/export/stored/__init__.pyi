from export.stored import *

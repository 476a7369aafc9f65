from export import *

from compare.repro import *

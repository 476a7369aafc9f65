from compare import *

from steal import *

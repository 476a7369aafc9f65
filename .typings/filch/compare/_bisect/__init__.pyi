from compare._bisect import *

from export.pt2_files import *

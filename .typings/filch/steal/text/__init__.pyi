from steal.text import *

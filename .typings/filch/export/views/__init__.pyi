from export.views import *

#include "base/test.h"

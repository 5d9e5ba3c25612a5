#include "simd/tile.h"

package bond

import (
	"math"
	"time"
)

// A PathID is the caller's number of a way, from 1.
type PathID uint16

// Never is when nothing is waited for.
const Never = time.Duration(math.MaxInt64)

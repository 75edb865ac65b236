package node

import (
	"cmp"
	"fmt"

	"weft"
	"weft/engine"
	"weft/path"
)

// MinMTU and MaxMTU are what the MTU of the overlay's interface may be, in bytes: IPv6 needs the one (RFC 8200 section
// 5), and no datagram has room for more than the other.
const (
	MinMTU = 1280
	MaxMTU = path.MaxMTU
)

// mtu is the MTU to go by.
func (s Settings) mtu() int { return cmp.Or(s.MTU, engine.MTU) }

// checkMTU says what is wrong with an MTU that somebody wants, if anything is.
func checkMTU(n int) error {
	if n == 0 || n >= MinMTU && n <= MaxMTU {
		return nil
	}
	return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("an MTU of %d bytes cannot be: give %d to %d", n, MinMTU, MaxMTU)}
}

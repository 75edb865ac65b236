package host

import (
	"errors"
	"net/netip"
	"time"
)

// ErrOverlap is wrapped by Announce when another overlay of this machine has some of the addresses.
var ErrOverlap = errors.New("overlaps with another network of this machine")

// An Overlay is a network that a daemon of weft has up on this machine. Each daemon announces its own, so that several of
// them know of each other: whose addresses are whose, and which of them answers for which names.
type Overlay struct {
	Interface string         `json:"interface"`
	Domain    string         `json:"domain"`
	Ranges    []netip.Prefix `json:"ranges"`
	Server    netip.Addr     `json:"server"` // answers for Domain and the names of Ranges, on port 53
	Named     time.Time      `json:"named"`  // since when it has had Domain; set by who announces
}

// overlaps returns a range that both have.
func (o Overlay) overlaps(other Overlay) (shared netip.Prefix, some bool) {
	for _, a := range o.Ranges {
		for _, b := range other.Ranges {
			if a.Overlaps(b) {
				return b, true
			}
		}
	}
	return netip.Prefix{}, false
}

// before reports whether of two overlays of one domain this one had it first.
func (o Overlay) before(other Overlay) bool {
	if o.Named.Equal(other.Named) {
		return o.Interface < other.Interface
	}
	return o.Named.Before(other.Named)
}

package vnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"weft"
)

// Pooling is which of several public addresses a NAT gives to a mapping (RFC 4787 section 4.1).
type Pooling uint8

// The poolings.
const (
	// PairedPooling gives all sockets of one inside host the same public address (REQ-2).
	PairedPooling Pooling = iota
	// ArbitraryPooling chooses for every mapping anew, by a hash over all that the mapping depends on: the
	// inside socket and, of the destination, what the mapping behaviour looks at.
	ArbitraryPooling
)

// String is the pooling in RFC 4787's words.
func (p Pooling) String() string {
	switch p {
	case PairedPooling:
		return "paired"
	case ArbitraryPooling:
		return "arbitrary"
	}
	return fmt.Sprintf("pooling %d", uint8(p))
}

// DefaultTimeout is how long a mapping lives without traffic where a config does not say: the two minutes that
// RFC 4787 REQ-5 permits at the least.
const DefaultTimeout = 2 * time.Minute

// maxTimeout is the longest timeout taken for meant: a day.
const maxTimeout = 24 * time.Hour

// NATConfig is all that can be said about a NAT or firewall. The zero value is none: Mapping and, but for a plain
// router, Filtering must be given.
type NATConfig struct {
	// Public are the outside addresses; none for NoNAT.
	Public []netip.Addr
	// Mapping is NoNAT for a firewall, which filters and does not translate, as those of IPv6 do.
	Mapping weft.Mapping
	// Filtering may be FilteringUnknown with NoNAT only: a plain router, which lets everything through.
	Filtering  weft.Filtering
	Allocation weft.Allocation // AllocationUnknown: random
	Step       int16           // of a sequential allocation; 0: 1
	// Hairpin turns packets from inside to the NAT's own public addresses back, with the external source
	// address and port (RFC 4787 REQ-9). Without it they are lost.
	Hairpin bool
	Pooling Pooling
	// Timeout is how long a session lives after the last packet that refreshes it; 0: DefaultTimeout. A mapping
	// lives as long as any of its sessions, but what one session's traffic keeps alive does not keep another's
	// filter open, as in Linux.
	Timeout time.Duration
	// RefreshInbound lets packets from outside refresh too; those from inside always do (RFC 4787 REQ-6).
	RefreshInbound bool
	// MaxMappings bounds the table, MaxPerHost what one inside host has of it; 0: only by the ports.
	MaxMappings, MaxPerHost int
	// OpensLate is how long after an outbound packet the filter lets in others than the very endpoint that was
	// written to, whose replies always pass: a NAT whose filter is a rule that something adds, which saw the
	// packet pass.
	OpensLate time.Duration
	// Spoils lets an unsolicited packet from outside occupy its 5-tuple, so that a later packet from inside to
	// where it came from gets another port than its mapping's. RFC 4787 forbids it, and Linux does it where its
	// own INPUT chain accepts what is for nobody inside.
	Spoils bool
	// BlockUDP drops everything.
	BlockUDP bool
	// Seed makes random ports and choices of addresses repeatable.
	Seed uint64
}

// NAT is the config's behaviour in the words that nodes use.
func (c NATConfig) NAT() weft.NAT {
	n := weft.NAT{Mapping: c.Mapping, Filtering: c.Filtering, Allocation: c.Allocation, Hairpin: weft.Unsupported}
	if c.Hairpin {
		n.Hairpin = weft.Supported
	}
	if c.Mapping == weft.NoNAT {
		n.Allocation = weft.AllocationUnknown
	} else if c.Allocation == weft.AllocationUnknown {
		n.Allocation = weft.RandomAllocation
	}
	if n.Allocation == weft.SequentialAllocation {
		n.Step = cmp.Or(c.Step, 1)
	}
	return n
}

// check says in one sentence what is impossible about the config.
func (c NATConfig) check() error {
	switch {
	case c.Mapping < weft.NoNAT || c.Mapping > weft.AddressAndPortDependentMapping:
		return fmt.Errorf("a NAT needs a mapping behaviour: none, EIM, ADM or APDM")
	case c.Filtering > weft.AddressAndPortDependentFiltering,
		c.Filtering == weft.FilteringUnknown && c.Mapping != weft.NoNAT:
		return fmt.Errorf("a NAT needs a filtering behaviour: EIF, ADF or APDF")
	case c.Allocation > weft.RandomAllocation:
		return fmt.Errorf("ports are allocated preserving, sequential or random, not as number %d", c.Allocation)
	case c.Pooling > ArbitraryPooling:
		return fmt.Errorf("addresses are pooled paired or arbitrary, not as number %d", c.Pooling)
	case c.Step != 0 && c.Allocation != weft.SequentialAllocation:
		return fmt.Errorf("a step of %d means something to sequential ports only; these are %v", c.Step, c.Allocation)
	case c.Timeout < 0 || c.Timeout > maxTimeout:
		return fmt.Errorf("a mapping's timeout is between 0 and %v, not %v", maxTimeout, c.Timeout)
	case c.OpensLate < 0 || c.OpensLate > maxTimeout:
		return fmt.Errorf("a filter opens between 0 and %v late, not %v", maxTimeout, c.OpensLate)
	case c.MaxMappings < 0 || c.MaxPerHost < 0:
		return fmt.Errorf("a limit of mappings is 0, for none, or more")
	}
	return c.checkPublic()
}

func (c NATConfig) checkPublic() error {
	if c.Mapping == weft.NoNAT {
		switch {
		case len(c.Public) > 0:
			return fmt.Errorf("a firewall that does not translate has no public addresses; %v was given", c.Public[0])
		case c.Hairpin:
			return fmt.Errorf("a firewall that does not translate has nothing to hairpin")
		}
		return nil
	}
	if len(c.Public) == 0 {
		return fmt.Errorf("a NAT needs a public address")
	}
	for i, a := range c.Public {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
			return fmt.Errorf("%v is no address that a NAT can have outside", a)
		}
		if a.Is4() != c.Public[0].Is4() {
			return fmt.Errorf("a NAT's public addresses are of one family, not %v and %v", c.Public[0], a)
		}
		for _, b := range c.Public[:i] {
			if a == b {
				return fmt.Errorf("the public address %v is given twice", a)
			}
		}
	}
	return nil
}

// A Verdict is what became of a packet.
type Verdict uint8

// The verdicts. The first two let the packet go on.
const (
	Forward        Verdict = iota
	HairpinBack            // turned back inside, with external source
	DropNoMapping          // nobody inside has the outside port
	DropFiltered           // the filter is not open for where it came from
	DropTableFull          // no port, or no room in the table, for a new mapping
	DropBlocked            // UDP is blocked
	DropNoHairpin          // to the NAT's own address, which it does not turn back
	DropTTL                // the time to live ran out
	DropNoRoute            // nobody has the address
	DropNoListener         // the host has no socket on that port
	DropLost               // the link lost it
	DropQueue              // the link's queue was full
	DropDown               // the link is down
)

var verdictWords = [...]string{
	Forward: "forwarded", HairpinBack: "turned back inside",
	DropNoMapping:  "dropped: no mapping has that port",
	DropFiltered:   "dropped: the filter is not open for that sender",
	DropTableFull:  "dropped: no room for another mapping",
	DropBlocked:    "dropped: UDP is blocked",
	DropNoHairpin:  "dropped: the NAT does not hairpin",
	DropTTL:        "dropped: time to live exceeded",
	DropNoRoute:    "dropped: no route to that address",
	DropNoListener: "dropped: no socket on that port",
	DropLost:       "lost on the link",
	DropQueue:      "dropped: the link's queue is full",
	DropDown:       "dropped: the link is down",
}

// String is the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdictWords) {
		return verdictWords[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Passed reports whether the packet goes on.
func (v Verdict) Passed() bool { return v <= HairpinBack }

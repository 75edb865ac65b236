package rendezvous

import (
	"net/netip"
	"sync"
	"time"

	"weft/wire"
)

// Limits bound what a rendezvous takes on. A zero field means its default.
type Limits struct {
	// Networks is how many networks have members at once; 4,096.
	Networks int
	// Members is how many members all networks have together; 16,384. Each costs two goroutines and its record, some 50 KiB
	// while it is there.
	Members int
	// PerNetwork is how many members one network has; wire.MaxMembers, which is also the most.
	PerNetwork int
	// PerSource is how many streams come from one IPv4 address or IPv6 /64; 256: an office behind a NAT.
	PerSource int
	// Strangers is how many streams there are that have proved nothing yet; 512.
	Strangers int
	// NetworkRate and TotalRate are how many bytes of records are sent in a second to the members of one network, and of
	// all; 4 MiB and 32 MiB. What waits is told later, and only its last state.
	NetworkRate, TotalRate int
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.Networks, 4096)
	def(&l.Members, 16384)
	def(&l.PerNetwork, wire.MaxMembers)
	l.PerNetwork = min(l.PerNetwork, wire.MaxMembers)
	def(&l.PerSource, 256)
	def(&l.Strangers, 512)
	def(&l.NetworkRate, 4<<20)
	def(&l.TotalRate, 32<<20)
	return l
}

const (
	// paceLeast is how often a member is told of changes at most; those of a large network wait longer, pacePer for each
	// member, since each is told of each.
	paceLeast = 100 * time.Millisecond
	pacePer   = time.Millisecond
	// saidEvery and saidBurst are how often a member may say something: beats, and records while it starts. One that says
	// more is read no faster.
	saidEvery = 500 * time.Millisecond
	saidBurst = 20
	// provePatience is how long a stream may prove nothing.
	provePatience = 10 * time.Second
	// lingering is how long who is refused has to read why.
	lingering = 2 * time.Second
	// ticketLife is how long a relay ticket holds. Relay and rendezvous are one process; a ticket that outlives it by an
	// hour bridges any restart.
	ticketLife = time.Hour
)

// A bucket bounds a rate of bytes, as the generic cell rate algorithm does: rate bytes in a second, after a burst of burst.
// Its zero value has been taken nothing from.
type bucket struct {
	mu    sync.Mutex
	until time.Time // when all that was taken will have been paid for
}

// take takes n bytes, and returns how long to wait before they are used.
func (b *bucket) take(now time.Time, n, rate int, burst time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.Before(now) {
		b.until = now
	}
	b.until = b.until.Add(time.Duration(n) * time.Second / time.Duration(rate))
	return max(0, b.until.Sub(now)-burst)
}

// rateBurst is how much of a rate may be used at once: the records of a network of a hundred that comes back together.
const rateBurst = 8 * time.Second

// source is what streams of one machine or site have in common.
func source(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is4() {
		return a
	}
	p, _ := a.WithZone("").Prefix(64)
	return p.Addr()
}

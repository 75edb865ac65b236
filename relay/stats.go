package relay

import "sync/atomic"

// A Drop is a reason why a datagram went nowhere.
type Drop uint8

// The reasons.
const (
	DropMalformed Drop = iota // no frame that a relay takes
	DropStranger              // its sender is not bound
	DropNoSuch                // its receiver is not bound
	DropTooLong               // came by a stream, too long for UDP
	DropFull                  // the socket's send buffer was full
	DropRefused               // the kernel would not send it
	DropQueue                 // the receiver's queue was full
	DropAge                   // it waited too long in the receiver's queue
	DropBusy                  // a Bind while too many waited to be verified
	DropLimited               // a Locate or Probe of a node that asks too often
	DropGuest                 // of a network of guests that has more than its share
	drops
)

var dropNames = [drops]string{"malformed", "stranger", "no-such-node", "too-long", "socket-full", "kernel", "queue-full", "aged", "busy", "limited", "guest"}

func (d Drop) String() string {
	if d < drops {
		return dropNames[d]
	}
	return "?"
}

// Flow counts datagrams and their bytes, without what carries them.
type Flow struct{ Datagrams, Bytes uint64 }

// Stats is what a server has done since its start, and how many it serves now.
type Stats struct {
	Nodes, UDP, Streams       int // bound at all, over UDP, by stream
	SentUDP, SentStream       Flow
	Challenges, Binds, Refuse uint64
	Locates, Probes           uint64 // Locates answered, STUN messages sent for Probes
	Drops                     map[Drop]uint64
	// Offload: how many of the UDP sockets send runs of datagrams as one.
	Sockets, Offload int
}

type counters struct {
	udpDatagrams, udpBytes, streamDatagrams, streamBytes atomic.Uint64
	challenges, binds, refused, locates, probes          atomic.Uint64
	drops                                                [drops]atomic.Uint64
	streams                                              atomic.Int64
}

func (c *counters) drop(why Drop, n int) {
	if n > 0 {
		c.drops[why].Add(uint64(n))
	}
}

// Stats returns a snapshot.
func (s *Server) Stats() Stats {
	c := &s.count
	st := Stats{
		Nodes: int(s.nodes.size.Load()), UDP: int(s.addrs.size.Load()), Streams: int(c.streams.Load()),
		SentUDP:    Flow{c.udpDatagrams.Load(), c.udpBytes.Load()},
		SentStream: Flow{c.streamDatagrams.Load(), c.streamBytes.Load()},
		Challenges: c.challenges.Load(), Binds: c.binds.Load(), Refuse: c.refused.Load(),
		Locates: c.locates.Load(), Probes: c.probes.Load(),
		Drops: map[Drop]uint64{},
	}
	for d := range drops {
		if n := c.drops[d].Load(); n > 0 {
			st.Drops[d] = n
		}
	}
	for _, socket := range s.slow.known() {
		st.Sockets++
		if send, _ := socket.Offload(); send {
			st.Offload++
		}
	}
	return st
}

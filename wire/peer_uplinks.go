package wire

import (
	"encoding/binary"

	"weft"
)

// Bounds of what Uplinks tells.
const (
	// MaxMetric is the highest metric of a link.
	MaxMetric = 1<<16 - 1
	// MaxRelayLinks is how many relays it names at most: as many as are kept (path.MaxRelayed) by UDP.
	MaxRelayLinks = 16
)

const uplinkSize = 2 + 2

// Uplinks tells the peer what the sender's links cost, and by which of them relays see it, of a sender that has several; it
// replaces what was told before. It goes out with [Candidates]; who does not know it takes all links for equal.
//
//	| 7 | 0 | metrics (1) | relays (1) | session (4) | sequence (4) |
//	metrics times: | link (2) | metric (2) |
//	relays times:  | relay (2) | link (2) |
//
// Session and sequence are those of the Candidates; the link is as in them. A link that is not named has the metric 0.
type Uplinks struct {
	Session, Seq uint32
	Metrics      []LinkMetric
	Relays       []RelayLink
}

// A LinkMetric is what a link costs: one with a higher metric carries data only while none with a lower one does.
type LinkMetric struct {
	Link   weft.LinkID
	Metric uint16
}

// A RelayLink says by which link a relay is spoken to over UDP.
type RelayLink struct {
	Relay weft.RelayID
	Link  weft.LinkID
}

func (u Uplinks) append(dst []byte) []byte {
	metrics, relays := u.Metrics[:min(len(u.Metrics), MaxLinks)], u.Relays[:min(len(u.Relays), MaxRelayLinks)]
	dst = append(dst, typeUplinks, 0, byte(len(metrics)), byte(len(relays)))
	dst = binary.BigEndian.AppendUint32(dst, u.Session)
	dst = binary.BigEndian.AppendUint32(dst, u.Seq)
	for _, x := range metrics {
		dst = binary.BigEndian.AppendUint16(dst, uint16(x.Link))
		dst = binary.BigEndian.AppendUint16(dst, x.Metric)
	}
	for _, x := range relays {
		dst = binary.BigEndian.AppendUint16(dst, uint16(x.Relay))
		dst = binary.BigEndian.AppendUint16(dst, uint16(x.Link))
	}
	return dst
}

func parseUplinks(b []byte) (PeerMessage, error) {
	metrics, relays := int(b[2]), int(b[3])
	if metrics > MaxLinks || relays > MaxRelayLinks || len(b) != 12+(metrics+relays)*uplinkSize {
		return nil, ErrFrame
	}
	u := Uplinks{
		Session: binary.BigEndian.Uint32(b[4:]), Seq: binary.BigEndian.Uint32(b[8:]),
		Metrics: make([]LinkMetric, metrics), Relays: make([]RelayLink, relays),
	}
	two := func(i int) (uint16, uint16) {
		at := b[12+i*uplinkSize:]
		return binary.BigEndian.Uint16(at), binary.BigEndian.Uint16(at[2:])
	}
	for i := range u.Metrics {
		link, metric := two(i)
		u.Metrics[i] = LinkMetric{Link: weft.LinkID(link), Metric: metric}
	}
	for i := range u.Relays {
		relay, link := two(metrics + i)
		u.Relays[i] = RelayLink{Relay: weft.RelayID(relay), Link: weft.LinkID(link)}
	}
	return u, nil
}

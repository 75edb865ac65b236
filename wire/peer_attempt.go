package wire

import "encoding/binary"

// An Attempt is what two nodes arrange beside plain punching: to spray ports or to predict them. One of the two
// leads, which both know without asking; it proposes, the other answers, and either ends it.
//
//	| 5 | kind (1) | way (1) | flags (1) | session (4) | other session (4) | number (4) |
//	| next (2) | step (2) | result (1) | count (1) | 0 (2) |
//	count times: | port (2) |
//
// Session, other session and number name the attempt, in either direction alike: the session of the one that
// leads, that of the other (those of [Candidates]), and a number that grows with each of its attempts. What names
// another attempt than the one that is known, or a lower number, is stale. The first flag says that the one
// that leads opens sockets and the other probes. Next is the outside port that the sender's next mapping is
// expected to have, or the port of the socket that it probes from; zero if it cannot tell. Step is from there to
// the one after. Ports are outside ports that are worth trying first. A kind, way or result that this version does
// not know is dropped with its message.
type Attempt struct {
	Kind                   AttemptKind
	Way                    AttemptWay
	LeaderOpens            bool
	Session, Other, Number uint32
	Next                   uint16
	Step                   int16
	Result                 AttemptResult
	Ports                  []uint16
}

// An AttemptKind is what an [Attempt] says.
type AttemptKind uint8

// The kinds, in the order in which they are said.
const (
	Propose AttemptKind = iota + 1 // by the one that leads: take part
	Agree                          // by the other: it does, and is ready
	Begin                          // by the one that leads, where both have to know the other's ports first
	End                            // by either, with a result
)

// An AttemptWay is how an attempt goes about it.
type AttemptWay uint8

// The ways.
const (
	Spray   AttemptWay = iota + 1 // one side opens many sockets, the other probes many ports
	Predict                       // both send to the ports that the other's NAT is expected to give
)

// An AttemptResult is how an attempt ended.
type AttemptResult uint8

// The results; NoResult of what is no [End].
const (
	NoResult  AttemptResult = iota
	Found                   // there is a direct path
	Exhausted               // all was tried
	Busy                    // not now: the sender takes part in another peer's attempt
	Declined                // not at all: the sender cannot, or thinks nothing of it
)

// MaxAttemptPorts is how many ports one message names at most.
const MaxAttemptPorts = 64

const attemptSize = 4 + 12 + 8

func (m Attempt) append(dst []byte) []byte {
	var flags byte
	if m.LeaderOpens {
		flags = 1
	}
	ports := m.Ports[:min(len(m.Ports), MaxAttemptPorts)]
	dst = append(dst, typeAttempt, byte(m.Kind), byte(m.Way), flags)
	dst = binary.BigEndian.AppendUint32(dst, m.Session)
	dst = binary.BigEndian.AppendUint32(dst, m.Other)
	dst = binary.BigEndian.AppendUint32(dst, m.Number)
	dst = binary.BigEndian.AppendUint16(dst, m.Next)
	dst = binary.BigEndian.AppendUint16(dst, uint16(m.Step))
	dst = append(dst, byte(m.Result), byte(len(ports)), 0, 0)
	for _, p := range ports {
		dst = binary.BigEndian.AppendUint16(dst, p)
	}
	return dst
}

func parseAttempt(b []byte) (PeerMessage, error) {
	if len(b) < attemptSize {
		return nil, ErrFrame
	}
	n := int(b[21])
	m := Attempt{
		Kind: AttemptKind(b[1]), Way: AttemptWay(b[2]), LeaderOpens: b[3]&1 != 0,
		Session: binary.BigEndian.Uint32(b[4:]),
		Other:   binary.BigEndian.Uint32(b[8:]),
		Number:  binary.BigEndian.Uint32(b[12:]),
		Next:    binary.BigEndian.Uint16(b[16:]),
		Step:    int16(binary.BigEndian.Uint16(b[18:])),
		Result:  AttemptResult(b[20]),
	}
	if n > MaxAttemptPorts || len(b) != attemptSize+2*n || m.Kind < Propose || m.Kind > End ||
		m.Way < Spray || m.Way > Predict || m.Result > Declined || (m.Kind == End) == (m.Result == NoResult) {
		return nil, ErrFrame
	}
	if n > 0 {
		m.Ports = make([]uint16, n)
		for i := range m.Ports {
			m.Ports[i] = binary.BigEndian.Uint16(b[attemptSize+2*i:])
		}
	}
	return m, nil
}

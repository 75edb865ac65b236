package control

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"

	"weft"
)

// The messages that grow with the network are put together from encodings that all sessions share: what is
// encoded per session is a few numbers. The results are wire.ServerMessages as encoding/json would write them.

func itoa[T ~uint16 | ~uint32](n T) string { return strconv.FormatUint(uint64(n), 10) }

// mapSize is about how long a node's whole map is, in bytes.
func (s *snapshot) mapSize() int {
	n := 1024 + len(s.relays.encoded()) + len(s.resolving.encoded())
	for _, e := range s.nodes.all() {
		n += len(e.encoded()) + 1
	}
	return n
}

// changeSize is about how long the message of a change is, in bytes.
func (s *snapshot) changeSize(changed []weft.NodeID) int {
	n := 1024 + len(s.relays.encoded()) + len(s.resolving.encoded())
	for _, id := range changed {
		if e, ok := s.nodes.get(uint32(id)); ok {
			n += len(e.encoded()) + 1
		} else {
			n += 11 // a number
		}
	}
	return n
}

// appendMap adds the message with a node's whole map.
func (s *snapshot) appendMap(dst []byte, self weft.NodeID, ticket []byte) []byte {
	dst = append(dst, `{"map":{"version":`...)
	dst = strconv.AppendUint(dst, s.version, 10)
	dst = append(dst, `,"self":`...)
	e, ok := s.nodes.get(uint32(self))
	if ok {
		dst = append(dst, e.encoded()...)
	}
	dst = append(dst, `,"peers":[`...)
	first := true
	for id, e := range s.nodes.all() {
		if id == uint32(self) || e.standing != member {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, e.encoded()...)
	}
	dst = append(dst, `],"relays":`...)
	dst = append(dst, s.relays.encoded()...)
	dst = append(dst, `,"domain":"`+s.resolving.doc.domain()+`","ranges":["`...)
	dst = s.net.IPv4.AppendTo(dst)
	dst = append(dst, `","`...)
	dst = s.net.IPv6.AppendTo(dst)
	dst = append(dst, `"],"service":"`...)
	dst = serviceAddr(s.net.IPv4).AppendTo(dst)
	dst = append(dst, '"')
	dst = appendTicket(dst, ticket)
	if ok {
		dst = e.rules.appendTo(dst, e)
	}
	dst = s.law.appendMap(s.resolving.appendMap(dst))
	return append(dst, "}}"...)
}

// appendChange adds the message that brings a node up from a version to this snapshot when these nodes (see since)
// changed. A ticket is sent along if there is one.
func (s *snapshot) appendChange(dst []byte, self weft.NodeID, from uint64, changed []weft.NodeID, ticket []byte) []byte {
	dst = append(dst, `{"change":{"version":`...)
	dst = strconv.AppendUint(dst, s.version, 10)
	if _, own := slices.BinarySearch(changed, self); own {
		if e, ok := s.nodes.get(uint32(self)); ok {
			dst = append(append(dst, `,"self":`...), e.encoded()...)
		}
	}
	var gone []weft.NodeID
	relays, first := false, true
	for _, id := range changed {
		e, ok := s.visible(id)
		switch {
		case id == relaysChanged:
			relays = true
		case id == self:
		case !ok:
			gone = append(gone, id)
		default:
			if first {
				dst = append(dst, `,"upsert":[`...)
			} else {
				dst = append(dst, ',')
			}
			first = false
			dst = append(dst, e.encoded()...)
		}
	}
	if !first {
		dst = append(dst, ']')
	}
	if len(gone) > 0 {
		dst = appendJSON(append(dst, `,"remove":`...), gone)
	}
	if relays {
		dst = append(append(dst, `,"relays":`...), s.relays.encoded()...)
	}
	dst = appendTicket(dst, ticket)
	if e, ok := s.nodes.get(uint32(self)); ok && e.ruled > from {
		dst = e.rules.appendTo(dst, e)
	}
	if s.resolving.version > from {
		dst = s.resolving.appendChange(dst)
	}
	if s.law.settled > from {
		dst = s.law.appendChange(dst)
	}
	return append(dst, "}}"...)
}

func appendTicket(dst, ticket []byte) []byte {
	if len(ticket) == 0 {
		return dst
	}
	dst = append(dst, `,"ticket":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, ticket)
	return append(dst, '"')
}

func appendJSON(dst []byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("names and numbers are always JSON: " + err.Error())
	}
	return append(dst, b...)
}

package weft

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Rule is a line of the policy as one node has to enforce it: what may be begun towards it, or towards what is behind it.
// Rules only allow; what no rule allows is dropped. Answers to what was allowed need no rule.
//
// A rule names its sources rather than listing their addresses, so that a member who comes or goes changes the map of
// a node and not its rules.
type Rule struct {
	From []Source `json:"from"`
	// To are the destinations; absent: the node's own overlay addresses.
	To []netip.Prefix `json:"to,omitempty"`
	// Ports are what may be reached there; absent: every protocol and port.
	Ports []PortRange `json:"ports,omitempty"`
	// Why is where in the policy the rule comes from, for people: "acls[2], line 14".
	Why string `json:"why,omitempty"`
}

// Equal compares every field.
func (r Rule) Equal(o Rule) bool {
	return r.Why == o.Why && slices.Equal(r.From, o.From) && slices.Equal(r.To, o.To) && slices.Equal(r.Ports, o.Ports)
}

// WithoutPolicy says what holds in a network whose administrator has set no policy.
const WithoutPolicy = "no policy is set, and without one only a user's own untagged machines reach each other"

// A Source is who may begin something: a word that a node understands by its map.
//
//	"*"          every member, and every address that a member speaks for
//	untagged     the nodes that have no tags, whosever they are
//	tagged       the nodes that have some
//	user:NAME    the nodes of a user that have no tags; without a name those of nobody
//	tag:NAME     the nodes with a tag
//	node:NUMBER  one node
//	PREFIX       these addresses, of whichever member speaks for them
//
// A word that a node does not understand is nobody.
type Source string

// The sources that have no name in them.
const (
	Everybody Source = "*" // every member
	Untagged  Source = "untagged"
	Tagged    Source = "tagged"
)

// SourceUser is the nodes of a user that have no tags.
func SourceUser(name string) Source { return Source("user:" + name) }

// SourceTag is the nodes with a tag, "tag:NAME" as nodes have it.
func SourceTag(tag string) Source { return Source(tag) }

// SourceNode is one node.
func SourceNode(id NodeID) Source { return Source("node:" + strconv.FormatUint(uint64(id), 10)) }

// SourcePrefix is the members that speak for addresses, when they send from them.
func SourcePrefix(p netip.Prefix) Source { return Source(p.String()) }

// Includes reports whether everything that a member sends is meant, from whichever address. Of a prefix it says
// false: that is for Prefix.
func (s Source) Includes(n Node) bool {
	switch s {
	case Everybody:
		return true
	case Untagged, Tagged:
		return len(n.Tags) > 0 == (s == Tagged)
	}
	kind, name, ok := strings.Cut(string(s), ":")
	if !ok {
		return false
	}
	switch kind {
	case "user":
		return len(n.Tags) == 0 && n.User == name
	case "tag":
		return slices.Contains(n.Tags, string(s))
	case "node":
		return name == strconv.FormatUint(uint64(n.ID), 10)
	}
	return false
}

// Prefix returns the addresses that the source is, if it is that.
func (s Source) Prefix() (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(string(s))
	return p.Masked(), err == nil
}

// Protocols that rules and people call by name (IANA's protocol numbers).
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// A PortRange is a range of ports of a protocol, the last one included. Of a protocol without ports it is 0 to 65535.
type PortRange struct {
	Proto       uint8 // IANA's number; 0: every protocol
	First, Last uint16
}

var protoNames = map[uint8]string{0: "*", ProtoICMP: "icmp", ProtoTCP: "tcp", ProtoUDP: "udp", ProtoICMPv6: "ipv6-icmp", ProtoSCTP: "sctp"}

// ProtoName is what people call a protocol: a name or its number; "*" is every one.
func ProtoName(proto uint8) string {
	if name, ok := protoNames[proto]; ok {
		return name
	}
	return strconv.Itoa(int(proto))
}

// ParseProto reads a protocol's name or number.
func ParseProto(s string) (uint8, error) {
	s = strings.ToLower(s)
	for number, name := range protoNames {
		if s == name {
			return number, nil
		}
	}
	if s == "icmpv6" {
		return ProtoICMPv6, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no protocol: tcp, udp, icmp, sctp or a number from 1 to 255", s)
	}
	return uint8(n), nil
}

// Contains reports whether a packet's protocol and destination port are in the range.
func (r PortRange) Contains(proto uint8, port uint16) bool {
	return (r.Proto == 0 || r.Proto == proto) && r.First <= port && port <= r.Last
}

// One reports whether the range is about one thing: a port, or a protocol that has none.
func (r PortRange) One() bool {
	switch r.Proto {
	case 0:
		return false
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		return r.First == r.Last
	}
	return r.First == 0
}

// String is how people write it: "tcp:22", "udp:6000-6100", "icmp", "*".
func (r PortRange) String() string {
	switch {
	case r.First == 0 && r.Last == 65535:
		return ProtoName(r.Proto)
	case r.First == r.Last:
		return fmt.Sprintf("%s:%d", ProtoName(r.Proto), r.First)
	}
	return fmt.Sprintf("%s:%d-%d", ProtoName(r.Proto), r.First, r.Last)
}

// ParsePortRange reads what String writes.
func ParsePortRange(s string) (PortRange, error) {
	name, ports, some := strings.Cut(s, ":")
	proto, err := ParseProto(name)
	if err != nil {
		return PortRange{}, err
	}
	r := PortRange{Proto: proto, Last: 65535}
	if !some || ports == "*" {
		return r, nil
	}
	low, high, span := strings.Cut(ports, "-")
	if !span {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || first > last {
		return PortRange{}, fmt.Errorf("%q is no port and no range of ports: write 22 or 6000-6100", ports)
	}
	r.First, r.Last = uint16(first), uint16(last)
	return r, nil
}

// MarshalJSON writes what String does.
func (r PortRange) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// UnmarshalJSON reads it.
func (r *PortRange) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	got, err := ParsePortRange(s)
	if err == nil {
		*r = got
	}
	return err
}

package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A BondRule names packets that go redundantly, by two paths, where the mode is aggregate, too. It matches what agrees
// with all that it says; the zero value but for a DSCP of -1 matches everything.
type BondRule struct {
	DSCP  int    // 0 to 63 (RFC 2474); -1: any
	Proto uint8  // IP's number of the protocol; 0: any
	Port  uint16 // source or destination, so that both directions of a conversation match; 0: any
}

// dscpNames are the classes of traffic by the names of RFC 2474 (CS), 2597 (AF), 3246 (EF), 5865 (VA) and 8622 (LE).
var dscpNames = map[string]int{
	"df": 0, "le": 1, "cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
	"af11": 10, "af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22, "af31": 26, "af32": 28, "af33": 30,
	"af41": 34, "af42": 36, "af43": 38, "va": 44, "ef": 46,
}

// maxDSCP is the largest: six bits (RFC 2474 section 3).
const maxDSCP = 63

// ParseBondRule reads a rule as String writes it: dscp:ef, dscp:46, udp:5004, tcp:22, or udp and tcp for all of it.
func ParseBondRule(s string) (BondRule, error) {
	kind, value, has := strings.Cut(s, ":")
	switch kind {
	case "dscp":
		n, known := dscpNames[strings.ToLower(value)]
		if !known {
			var err error
			if n, err = strconv.Atoi(value); err != nil || n < 0 || n > maxDSCP {
				return BondRule{}, fmt.Errorf("%q is no DSCP: give 0 to %d or a name, for example dscp:ef", value, maxDSCP)
			}
		}
		return BondRule{DSCP: n}, nil
	case "udp", "tcp":
		r := BondRule{DSCP: -1, Proto: protoUDP}
		if kind == "tcp" {
			r.Proto = protoTCP
		}
		if has {
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return BondRule{}, fmt.Errorf("%q is no port: give 1 to 65535, for example %s:5004", value, kind)
			}
			r.Port = uint16(n)
		}
		return r, nil
	}
	return BondRule{}, fmt.Errorf("%q is no rule: give dscp:CLASS, udp:PORT or tcp:PORT, for example dscp:ef", s)
}

// String is the rule's text form.
func (r BondRule) String() string {
	if r.DSCP >= 0 {
		var names []string
		for name, n := range dscpNames {
			if n == r.DSCP {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			return "dscp:" + strconv.Itoa(r.DSCP)
		}
		return "dscp:" + slices.Max(names) // df, and not cs0
	}
	kind := "udp"
	if r.Proto == protoTCP {
		kind = "tcp"
	}
	if r.Port == 0 {
		return kind
	}
	return kind + ":" + strconv.Itoa(int(r.Port))
}

// MarshalText writes the text form.
func (r BondRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads it.
func (r *BondRule) UnmarshalText(b []byte) (err error) {
	*r, err = ParseBondRule(string(b))
	return err
}

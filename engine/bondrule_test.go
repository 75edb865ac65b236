package engine

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRulesComeBackFromTheirText(t *testing.T) {
	for text, want := range map[string]BondRule{
		"dscp:ef": {DSCP: 46}, "dscp:EF": {DSCP: 46}, "dscp:46": {DSCP: 46}, "dscp:0": {DSCP: 0}, "dscp:cs0": {DSCP: 0}, "dscp:63": {DSCP: 63},
		"dscp:af41": {DSCP: 34}, "udp:5004": {DSCP: -1, Proto: 17, Port: 5004}, "tcp:22": {DSCP: -1, Proto: 6, Port: 22},
		"udp": {DSCP: -1, Proto: 17}, "tcp": {DSCP: -1, Proto: 6},
	} {
		got, err := ParseBondRule(text)
		if err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
		if back, err := ParseBondRule(got.String()); err != nil || back != got {
			t.Errorf("%s is told as %s, which is %+v, %v", text, got, back, err)
		}
	}
	for name, n := range dscpNames {
		if got, err := ParseBondRule("dscp:" + name); err != nil || got.DSCP != n || n > maxDSCP {
			t.Errorf("%s is %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{"", "dscp", "dscp:", "dscp:64", "dscp:-1", "dscp:ef ", "udp:", "udp:0", "udp:65536", "udp:-1", "udp:x", "tcp:1:2", "icmp", "ef", "5004", "UDP:5"} {
		if got, err := ParseBondRule(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		} else if strings.Contains(err.Error(), "strconv") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseBondRule(f *testing.F) {
	for _, s := range []string{"dscp:ef", "dscp:46", "udp:5004", "tcp", "dscp:", "udp:65536", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseBondRule(s)
		if err != nil {
			return
		}
		if back, err := ParseBondRule(r.String()); err != nil || back != r {
			t.Errorf("%q is %+v, told as %q, which is %+v, %v", s, r, r, back, err)
		}
	})
}

// Who sets the same rules at both ends has both directions of a conversation go by two paths.
func TestARuleMatchesBothDirections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := BondRule{DSCP: rapid.IntRange(-1, maxDSCP).Draw(t, "dscp"), Proto: rapid.SampledFrom([]uint8{0, 6, 17}).Draw(t, "proto"), Port: uint16(rapid.IntRange(0, 3).Draw(t, "port"))}
		dscp, proto := rapid.SampledFrom([]uint8{0, 46}).Draw(t, "of"), rapid.SampledFrom([]uint8{1, 6, 17}).Draw(t, "by")
		from, to := uint16(rapid.IntRange(0, 3).Draw(t, "from")), uint16(rapid.IntRange(0, 3).Draw(t, "to"))
		if r.matches(dscp, proto, [2]uint16{from, to}) != r.matches(dscp, proto, [2]uint16{to, from}) {
			t.Errorf("%+v matches one direction of %d -> %d", r, from, to)
		}
	})
}

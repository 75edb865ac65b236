package weft_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"weft"
)

func TestASourceIsTheNodesThatItNames(t *testing.T) {
	laptop := weft.Node{ID: 7, User: "ada"}
	robot := weft.Node{ID: 8, User: "ada", Tags: []string{"tag:robot"}}
	for _, c := range []struct {
		source        weft.Source
		laptop, robot bool
	}{
		{weft.Everybody, true, true},
		{weft.SourceUser("ada"), true, false}, // who is tagged acts for its tag, not for its user
		{weft.SourceUser("bob"), false, false},
		{weft.SourceUser(""), false, false}, // the machines of nobody
		{"user", false, false},
		{weft.Untagged, true, false},
		{weft.Tagged, false, true},
		{weft.SourceTag("tag:robot"), false, true},
		{weft.SourceTag("tag:rob"), false, false},
		{weft.SourceNode(7), true, false},
		{weft.SourcePrefix(netip.MustParsePrefix("0.0.0.0/0")), false, false},
		{"planet:mars", false, false},
		{"", false, false},
	} {
		if got := c.source.Includes(laptop); got != c.laptop {
			t.Errorf("%q includes the laptop: %v", c.source, got)
		}
		if got := c.source.Includes(robot); got != c.robot {
			t.Errorf("%q includes the robot: %v", c.source, got)
		}
	}
	if p, ok := weft.Source("192.168.7.9/24").Prefix(); !ok || p.String() != "192.168.7.0/24" {
		t.Errorf("the prefix is %v, %v", p, ok)
	}
	if _, ok := weft.SourceUser("ada").Prefix(); ok {
		t.Error("a user is taken for a prefix")
	}
}

func TestAPortRangeReadsWhatItWrites(t *testing.T) {
	for text, want := range map[string]weft.PortRange{
		"tcp:22":        {Proto: weft.ProtoTCP, First: 22, Last: 22},
		"udp:6000-6100": {Proto: weft.ProtoUDP, First: 6000, Last: 6100},
		"icmp":          {Proto: weft.ProtoICMP, Last: 65535},
		"ipv6-icmp":     {Proto: weft.ProtoICMPv6, Last: 65535},
		"47":            {Proto: 47, Last: 65535},
		"*":             {Last: 65535},
		"*:53":          {First: 53, Last: 53},
	} {
		got, err := weft.ParsePortRange(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q is read as %v (%v)", text, got, err)
		}
	}
	for _, bad := range []string{"", "tcp:", "tcp:70000", "tcp:9-3", "tcp:-3", "256", "0", "quic:1", "tcp:1-2-3"} {
		if got, err := weft.ParsePortRange(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	for _, seed := range []string{"tcp:22", "udp:6000-6100", "icmp", "*", "tcp:1-2-3", "17:5"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := weft.ParsePortRange(s)
		if err != nil {
			return
		}
		if again, err := weft.ParsePortRange(r.String()); err != nil || again != r {
			t.Fatalf("%q is %v, which is read as %v (%v)", s, r, again, err)
		}
	})
}

func TestRulesThatAreGoneAreNotRulesThatStay(t *testing.T) {
	rule := weft.Rule{From: []weft.Source{weft.Everybody}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}}, Why: "acls[0], line 3"}
	m := weft.NetworkMap{Rules: []weft.Rule{rule}}
	for _, c := range []struct {
		change weft.Change
		left   int
	}{
		{weft.Change{}, 1},
		{weft.Change{Rules: []weft.Rule{}}, 0},
	} {
		b, err := json.Marshal(c.change)
		if err != nil {
			t.Fatal(err)
		}
		var came weft.Change
		if err := json.Unmarshal(b, &came); err != nil {
			t.Fatal(err)
		}
		if got := m.Apply(came); len(got.Rules) != c.left {
			t.Errorf("after %s there are %d rules", b, len(got.Rules))
		}
		if came.Empty() != (c.left == 1) {
			t.Errorf("%s is taken for nothing", b)
		}
	}
	b, err := json.Marshal(rule)
	if want := `{"from":["*"],"ports":["tcp:22"],"why":"acls[0], line 3"}`; err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("a rule is written %s (%v)", b, err)
	}
}

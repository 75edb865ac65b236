package weft_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
)

var update = flag.Bool("update", false, "write the golden files of this package anew")

// documents are all that --json prints, with every field set.
func documents() map[string]any {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	addrs := []netip.Addr{netip.MustParseAddr("100.64.0.7"), netip.MustParseAddr("fd12::7")}
	endpoint := netip.MustParseAddrPort("192.0.2.1:3478")
	nat := weft.NAT{
		Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressDependentFiltering,
		Allocation: weft.SequentialAllocation, Step: -2, Hairpin: weft.Supported,
	}
	family := weft.NetcheckFamily{Works: true, Mapped: endpoint, Mapping: "unknown", Filtering: "unknown", NAT: nat, Outside: addrs, Prospects: []string{"p"}}
	refusal := weft.Refusal{Packets: 12, Last: "tcp:22", At: at}
	return map[string]any{
		"status": weft.Status{
			Schema: weft.SchemaVersion, Version: "1.2.3", State: weft.Running,
			Self: weft.SelfStatus{
				ID: 7, Name: "web", FQDN: "web.weft.internal", Key: "nodekey:x", Addrs: addrs,
				Candidates: []weft.Candidate{{Addr: endpoint, Kind: weft.ServerReflexive, Link: 2, TCP: true}},
				Interface:  "weft0", Userspace: true, Proxy: "127.0.0.1:1080", Port: 41641,
				Links:  []weft.LinkStatus{{ID: 2, Interface: "eth1", Port: 41641, NAT: nat}},
				Relays: []weft.RelayStatus{{ID: 1, Name: "home", UDP: true, Stream: true, Addr: endpoint, RTTms: 1.5, Error: "e"}},
				DNS:    "resolved", MTU: 1280, Offload: weft.OffloadStatus{InterfaceTCP: true, InterfaceUDP: true, Send: true, Receive: true}, Expires: at,
				Refused:    map[string]uint64{"no_rule": 3},
				Advertised: []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24")}, Routes: []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24")},
				ExitNode: "gate",
			},
			Server: weft.ServerStatus{
				URL: "https://weft.example", Connected: true, Since: at, Transport: "upgrade", Error: "e", MapAge: 2.5,
			},
			Peers: []weft.PeerStatus{{
				ID: 9, Name: "db", Addrs: addrs, User: "anna", Tags: []string{"tag:db"}, Online: true,
				Path: weft.PathDirect, Method: weft.Direct, Endpoint: "192.0.2.9:41641", Link: "eth1", RTTms: 1.5, Loss: 0.25, Gateway: "home", MTU: 1392,
				Bond: "aggregate", Carriers: []string{"eth0", "eth1"},
				RxBytes: 1, TxBytes: 2, Refused: refusal, LastHandshake: at, LastSeen: at, DirectAfterMS: 350.5, Reason: "r",
				Switches: []weft.PathSwitch{{At: at, From: "relay-udp #1", To: "direct 192.0.2.9:41641", Reason: "r"}},
			}},
			Routes:   []weft.RouteStatus{{Route: netip.MustParsePrefix("192.168.142.0/24"), By: "hq", Beside: []string{"hq2"}, Note: "n"}},
			Problems: []string{"p"}, Notes: []string{"n"},
			SignIn: weft.SignInStatus{URL: "https://weft.example/signin/AB3C", Code: "K7QX-2MNP", Until: at},
		},
		"ping": weft.PingReply{
			Schema: weft.SchemaVersion, Peer: "db", Seq: 1, Path: weft.PathRelay, Method: weft.RelayUDP,
			Endpoint: "home", RTTms: 1.5, Error: "e",
		},
		"netcheck": weft.Netcheck{
			Schema: weft.SchemaVersion, UDP: true,
			IPv4:      weft.NetcheckFamily{Works: true, Mapped: endpoint, Mapping: "endpoint-independent", Filtering: "unknown", NAT: nat, Outside: addrs, Prospects: []string{"p"}},
			IPv6:      family,
			Relays:    []weft.NetcheckRelay{{Name: "home", UDPms: 1.5, StreamMS: 2.5, Stream: "websocket", Error: "e"}},
			Interface: []string{"eth0"}, Problems: []string{"p"},
			Links: []weft.NetcheckLink{{Link: 2, Interface: "eth1", IPv4: family, IPv6: family}},
		},
		"paths of a peer": weft.Paths{
			Schema: weft.SchemaVersion, Peer: "db", Online: true,
			Bond: weft.BondStatus{
				On: true, Why: "w", Mode: "aggregate", Congestion: "bbr", Redundant: []string{"dscp:ef"}, QueuePackets: 1, QueueBytes: 1420,
				Received: weft.BondReceived{Delivered: 9, Held: 3, HeldBytes: 2840, Reordered: 1, Late: 2, Duplicates: 4, GapsPassed: 5, GapsTimedOut: 6},
			},
			Paths: []weft.PathStatus{{
				Link: "eth1", Local: endpoint, Remote: "192.0.2.9:41641", Method: weft.Direct, Kind: "host", State: weft.PathActive, Reason: "r", Metric: 20,
				Load:   weft.PathLoad{Share: 0.25, TxRate: 8e6, RxRate: 4e6, TxBytes: 4000, RxBytes: 3000, TxPackets: 4, RxPackets: 3},
				Bonded: weft.BondedPath{Rate: 16e6, MinRTTms: 10.5, InFlight: 2840, Window: 14200, Lost: 2, Again: 1},
				RTTms:  1.5, Loss: 0.25, MTU: 1392, LastSeen: at,
			}},
			Untested: 3,
			Events:   []weft.PathEvent{{At: at, Path: "direct 192.0.2.9:41641 by eth1", From: weft.PathActive, To: weft.PathSilent, Reason: "r"}},
		},
		"access": weft.Access{
			Schema: weft.SchemaVersion, From: "web", FromAddr: addrs[0], To: "db", ToAddr: addrs[1], What: "tcp:22", Allowed: true,
			Rules: []weft.Rule{{
				From: []weft.Source{"tag:web"}, To: []netip.Prefix{netip.PrefixFrom(addrs[1], 128)},
				Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}}, Why: "w",
			}},
			Reason: "r", Refused: refusal, DecidedBy: "gw",
			Carrier: weft.Carrier{Route: netip.PrefixFrom(addrs[1], 128), By: "gw", Approved: true, InUse: true, Beside: []string{"web"}, Note: "n"},
		},
		"metrics": weft.Metrics{Schema: weft.SchemaVersion, Families: []weft.MetricFamily{{
			Name: "weft_peer_online", Type: "gauge", Help: "h", Samples: []weft.MetricSample{{Labels: map[string]string{"peer": "db"}, Value: 1}},
		}}},
		"states of paths": []weft.PathState{
			weft.PathInUse, weft.PathReady, weft.PathUntested, weft.PathFailed, weft.PathActive, weft.PathStandby, weft.PathSilent,
			weft.PathReturning, weft.PathGone, weft.PathBonded,
		},
		"states": []weft.DaemonState{weft.NeedsJoin, weft.NeedsSignIn, weft.Stopped, weft.Starting, weft.Running, weft.Refused},
		"paths":  []weft.PathKind{weft.PathDirect, weft.PathRelay, weft.PathNone},
		"error":  weft.Error{Code: weft.CodeSpentToken, Message: "m"},
		"codes": []weft.Code{
			weft.CodeBadToken, weft.CodeSpentToken, weft.CodeExpiredToken, weft.CodeExpiredNode, weft.CodeRemoved,
			weft.CodeWrongServer, weft.CodeNameTaken, weft.CodeExhausted, weft.CodeBadRequest, weft.CodeNotFound,
			weft.CodeDenied, weft.CodeUnavailable, weft.CodeInternal,
		},
	}
}

// TestTheDocumentsAreWhatScriptsRelyOn fails when a field is renamed, goes, or changes its form. A field that is
// only added is added to the golden file by -update; for all else SchemaVersion grows.
func TestTheDocumentsAreWhatScriptsRelyOn(t *testing.T) {
	got, err := json.MarshalIndent(documents(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	golden := filepath.Join("testdata", "status.golden.json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

// TestTheGoldenDocumentsShowEveryField fails when a field was added and documents does not set it.
func TestTheGoldenDocumentsShowEveryField(t *testing.T) {
	var look func(at string, v reflect.Value)
	look = func(at string, v reflect.Value) {
		switch v.Interface().(type) {
		case time.Time, netip.Addr, netip.AddrPort, netip.Prefix:
			if v.IsZero() {
				t.Errorf("%s is not set", at)
			}
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				look(at+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice:
			if v.Len() == 0 {
				t.Errorf("%s is empty", at)
			}
			for i := range v.Len() {
				look(at, v.Index(i))
			}
		default:
			if v.IsZero() {
				t.Errorf("%s is not set", at)
			}
		}
	}
	for name, d := range documents() {
		look(name, reflect.ValueOf(d))
	}
}

func TestTheDocumentsComeBack(t *testing.T) {
	for name, d := range documents() {
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		back := reflect.New(reflect.TypeOf(d))
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		if err := dec.Decode(back.Interface()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(d, back.Elem().Interface(), sameValues); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

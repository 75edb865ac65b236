// Package rendezvous is where the members of a network of two words meet: the server that introduces them, and what a
// member makes of what it is told.
//
// # Two words
//
// A network is a name and a secret. Argon2id makes a [key.Shared] of the two ([Words.Network]); from that come a signing
// key, whose public half is the network as the rendezvous knows it, and a box that records are sealed in. Who has not both
// words can neither enter, nor read a record, nor make one. The node keys in the records are what WireGuard trusts, so
// members reach each other and nobody in between can put himself there.
//
// # What the rendezvous knows, and what it can do
//
// It sees which network (a public key), how many members, their node keys, the numbers that they chose (which are their
// overlay addresses), and where they connect from. It sees neither the words, nor names, nor candidates, and no packets:
// only the relay beside it carries some, sealed. It can refuse service, tell old records as new until their node makes a
// later one, and try words against the public key, at the price of one Argon2id for each try. So the secret is to be long.
//
// What it keeps is in memory, and is forgotten [Forget] after a member's last beat. A member that is told so little that
// another is missing, after the rendezvous started anew, keeps that one for as long: a restart is not noticed.
//
// # Whose address it is
//
// Nobody gives addresses. A member looks first who is there, and claims one that nobody has. Where two claimed one at
// once, or while the rendezvous was away, everybody decides alike: the one that has had it for longer by its own word, and
// of two equals the one of the smaller key ([View]). The other hears it and takes another, or says who has it. The number
// of a node, by which relays know it, is its IPv4 address: so numbers are not given twice either.
//
// # What strangers can take
//
// Anybody can make up a network: that is what it is for. [Limits] bounds what all of them together, one network and one
// address may have of connections, members and bytes; the relay bounds what it forwards for them ([weft/relay.Guests]). A
// rendezvous may be told the networks that it serves, and then serves no others.
//
// The package leans on key, wire, stream and the root.
package rendezvous

import "time"

// Times of both sides. The first two are those of the document that the idea comes from (Badger).
const (
	// BeatEvery is how often a member says that it is there.
	BeatEvery = 5 * time.Second
	// Forget is how long after its last beat a member is forgotten.
	Forget = 30 * time.Second
	// Silence is how long a member waits for any word, each beat being answered, before it connects anew.
	Silence = 12 * time.Second
)

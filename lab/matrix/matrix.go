// Package matrix answers, for one pair of NATs after another, whether two nodes behind them come to talk directly:
// the table that RFC 4787's words span, 9 by 9, or RFC 3489's four old types, 4 by 4.
//
// # What it is for
//
// A [Config] says which table and under which conditions (double NAT, pools of addresses, a shared NAT, loss,
// late filters, how ports are chosen). [Config.Plan] makes of it one scenario per cell, in the ordinary format of
// scenarios, and asks the oracle what could be had there at best. [Plan.Run] lets a backend run every cell with several
// seeds, many at once, and judges. The [Result] is a value: it prints itself as the table that the expectation
// files have, as JSON, and for a terminal; package report draws it.
//
// # How a cell is judged
//
// A run is direct when, at its end, both nodes send to each other without a relay. A cell is direct when enough of its
// runs are: all of them where plain punching suffices, 97 % where it takes a spray, whose success is a matter
// of luck by design (256 open ports and 2,048 probes miss each other once in about 3,000 times, and packets get lost),
// and 90 % where it takes a prediction of ports, which others' traffic may upset. Which of them it is, the oracle says,
// never the runs: a plain cell that needed a spray is no plain cell.
//
// # What it refuses
//
// It knows nothing of sockets, namespaces or the program under test; that is the backend's. It keeps the packets of one
// run per cell, the one in the middle by time, already bundled (see [Step]), so that memory stays the same however
// many seeds run. It never repairs an expectation file: what it does not understand is an error with its line.
package matrix

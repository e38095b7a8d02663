(* TreeTable.v - prints what Trees.v says of every tree of 1 to 8 rows, as numbers.

   proofs/tree_table.c prints the same numbers from the C functions, and the two texts must be
   equal. A line is a tree; its numbers are packed from lists of small ones, the first lowest:

     parents, 4 bits a row; steps of the GDN program, 6 bits a step, 8 a number;
     ancestors, 8 bits a row, 4 rows a number; depths, 4 bits a row;
     for every row, its path by depth, 4 bits each, 15 beyond its end;
     for every match mask, 20 a number: the last accepted row, 3 bits
     for all rows that can match, budget 1..9 x page end 1..9, 10 a number: rows, 4 bits, and end, 2
     for each row's sample as a stop token, alone and with budget 2 and page end 3: the same

   Bit r - 1 of a mask says that row r carries the token that its parent's row samples. *)

Require Import ZArith List Bool Uint63.
From Elpis Require Import Trees.
Import ListNotations.
Open Scope Z_scope.

Definition pack (bits : Z) (numbers : list Z) : Z :=
  fold_right (fun number rest => number + Z.shiftl rest bits) 0 numbers.

Fixpoint groups (fuel size : nat) (numbers : list Z) : list (list Z) :=
  match fuel with
  | O => []
  | S fuel => match numbers with
              | [] => []
              | _ => firstn size numbers :: groups fuel size (skipn size numbers)
              end
  end.
Definition packed (bits : Z) (size : nat) (numbers : list Z) : list Z :=
  map (pack bits) (groups (length numbers) size numbers).

Definition tokens : list Z := map (fun row => 1000 + Z.of_nat row) (seq 0 8).
Definition token (row : nat) : Z := nth row tokens 0.

(* A row samples the token of its first child that the mask names, or one that no row has. *)
Definition samples (families : list (list (Z * Z))) (mask : Z) : list Z :=
  map (fun family => match find (fun child => Z.testbit mask (fst child)) family with
                     | Some child => snd child
                     | None => 5000
                     end) families.
Definition families (t : tree) : list (list (Z * Z)) :=
  map (fun row => map (fun child => (Z.of_nat child - 1, token child)) (children t row))
      (seq 0 (rows t)).

Definition last_row (t : tree) (sampled : list Z) : nat :=
  last (accept t token (fun row => nth row sampled 0)) 0%nat.

Definition end_code (e : ending) : Z := match e with More => 0 | Stop => 1 | Budget => 2 end.
Definition verdict_code (t : tree) (sampled : list Z) (stops : Z -> bool) (budget page_end : nat)
  : Z :=
  let found := verdict t token (fun row => nth row sampled 0) stops budget page_end (rows t) 0 0 in
  Z.of_nat (length (fst found)) + 16 * end_code (snd found).

Definition line (t : tree) : list Z :=
  let all := seq 0 (rows t) in
  let steps := map (fun s => Z.of_nat (code (fst s) * 16 + snd s)) (program t) in
  let masks := map Z.of_nat (seq 0 (Nat.pow 2 (length t))) in
  let limits := seq 1 9 in
  let known := families t in
  let full := samples known (-1) in
  pack 4 (map Z.of_nat t) ::
  packed 6 8 steps ++
  packed 8 4 (map (fun row => pack 1 (map (fun other => if sees t row other then 1 else 0) all))
    all) ++
  pack 4 (map (fun row => Z.of_nat (depth t row)) all) ::
  map (fun row => pack 4 (map (fun at_depth => Z.of_nat (nth at_depth (path t row) 15%nat))
    (seq 0 8))) all ++
  packed 3 20 (map (fun mask => Z.of_nat (last_row t (samples known mask))) masks) ++
  packed 6 10 (flat_map (fun budget => map (verdict_code t full (fun _ => false) budget) limits)
    limits) ++
  packed 6 8 (flat_map (fun row =>
    let stops := Z.eqb (nth row full 0) in
    [verdict_code t full stops 40 40; verdict_code t full stops 2 3]) all).

(* Machine integers print fast. *)
Definition table : list (list int) :=
  flat_map (fun n => map (fun t => map Uint63.of_Z (line t)) (trees n)) (seq 0 8).

(* Printed line by line: a list of all lines would be laid out as a whole, for minutes. *)
Set Printing Width 10000.
Open Scope uint63_scope.
Ltac print_lines lines :=
  lazymatch lines with
  | nil => idtac
  | cons ?numbers ?rest => idtac numbers; print_lines rest
  end.
Goal True.
  let lines := eval vm_compute in table in print_lines lines.
Abort.

(* Errors.v - rounding: no changed operation has a larger normwise bound than stock's.

   A computed number comes from exact ones by additions and by roundings, each with a relative error
   of at most a unit; which units is a matter of formats: 2^-24 for binary32 rounded to nearest,
   2^-23 where a tensor core truncates, 2^-11 for binary16. An expression's bound is the product of
   (1 + unit) over the roundings on its worst path, less one, relative to the sum of the magnitudes
   of its terms (Higham, section 3.1): the normwise bound. Two things are proved:

     any value that the roundings allow lies within that bound (rounding);
     the 16-bit digits of a decode linear are together as near to the activations, in the 2-norm, as
     binary16 is (digits_norm): one step of class r16.

   What is left is to count: a schedule exports the roundings on the worst path of its operation
   beside those of stock's one-token decode, and Coq compares the two products exactly. Numbers are
   rationals; no real numbers, no axioms. *)

Require Import QArith Qabs List Bool Lia ZArith Lqa.
Import ListNotations.

(* ---- the bound of an expression *)

Open Scope Q_scope.

(* Terms are added and rounded: a tree. *)
Inductive sum_tree :=
  | Term (exact : Q)
  | Plus (a b : sum_tree)
  | Rounded (unit : Q) (a : sum_tree).

Fixpoint exact_of (e : sum_tree) : Q :=
  match e with
  | Term x => x
  | Plus a b => exact_of a + exact_of b
  | Rounded _ a => exact_of a
  end.

Fixpoint magnitude (e : sum_tree) : Q :=
  match e with
  | Term x => Qabs x
  | Plus a b => magnitude a + magnitude b
  | Rounded _ a => magnitude a
  end.

(* One plus the bound: the largest product of (1 + unit) on a way from a term to the result. *)
Fixpoint growth (e : sum_tree) : Q :=
  match e with
  | Term _ => 1
  | Plus a b => if Qle_bool (growth a) (growth b) then growth b else growth a
  | Rounded unit a => growth a * (1 + unit)
  end.

(* The values that an execution may give: every rounding errs by at most its unit. *)
Inductive computes : sum_tree -> Q -> Prop :=
  | computes_term : forall x, computes (Term x) x
  | computes_plus : forall a b x y, computes a x -> computes b y -> computes (Plus a b) (x + y)
  | computes_rounded : forall unit a x y, computes a x -> 0 <= unit ->
      Qabs (y - x) <= unit * Qabs x -> computes (Rounded unit a) y.

Lemma growth_least : forall e x, computes e x -> 1 <= growth e.
Proof.
  intros e x run. induction run; simpl.
  - lra.
  - destruct (Qle_bool (growth a) (growth b)); assumption.
  - nra.
Qed.

Lemma exact_magnitude : forall e, Qabs (exact_of e) <= magnitude e.
Proof.
  induction e; simpl.
  - apply Qle_refl.
  - apply Qle_trans with (Qabs (exact_of e1) + Qabs (exact_of e2)); [apply Qabs_triangle |].
    apply Qplus_le_compat; assumption.
  - assumption.
Qed.

Lemma magnitude_pos : forall e, 0 <= magnitude e.
Proof.
  intro e. apply Qle_trans with (Qabs (exact_of e)); [apply Qabs_nonneg | apply exact_magnitude].
Qed.

(* Law rounding: whatever the roundings do, the result differs from the exact sum by at most the
   bound times the sum of the terms' magnitudes, whichever way it is added up.
   Mirrors: nat_order, err_gemm, err_attn. *)
Theorem rounding : forall e x, computes e x ->
  Qabs (x - exact_of e) <= (growth e - 1) * magnitude e.
Proof.
  intros e x run.
  induction run as [x | a b x y run_a near_a run_b near_b | unit a x y run near some err];
    cbn [exact_of growth magnitude].
  - rewrite (Qabs_wd (x - x) 0) by ring. change (Qabs 0) with 0. pose proof (Qabs_nonneg x). lra.
  - apply Qle_trans with (Qabs (x - exact_of a) + Qabs (y - exact_of b)).
    + rewrite (Qabs_wd _ ((x - exact_of a) + (y - exact_of b))) by ring. apply Qabs_triangle.
    + pose proof (magnitude_pos a). pose proof (magnitude_pos b).
      destruct (Qle_bool (growth a) (growth b)) eqn:order.
      * apply Qle_bool_iff in order. nra.
      * assert (growth b <= growth a).
        { destruct (Qlt_le_dec (growth b) (growth a)) as [less | more]; [lra |].
          apply Qle_bool_iff in more. congruence. }
        nra.
  - pose proof (growth_least a x run). pose proof (magnitude_pos a).
    pose proof (exact_magnitude a).
    assert (size : Qabs x <= growth a * magnitude a).
    { apply Qle_trans with (Qabs ((x - exact_of a) + exact_of a));
        [apply Qle_lteq; right; apply Qabs_wd; ring |].
      apply Qle_trans with (Qabs (x - exact_of a) + Qabs (exact_of a));
        [apply Qabs_triangle | lra]. }
    apply Qle_trans with (Qabs (y - x) + Qabs (x - exact_of a)).
    + rewrite (Qabs_wd _ ((y - x) + (x - exact_of a))) by ring. apply Qabs_triangle.
    + assert (unit * Qabs x <= unit * (growth a * magnitude a)) by nra. nra.
Qed.

Close Scope Q_scope.
Open Scope Z_scope.

(* ---- the digits of a decode linear *)

Fixpoint squares (list : list Z) : Z :=
  match list with
  | [] => 0
  | x :: rest => x * x + squares rest
  end.

(* A block of a row: the largest magnitude, and pairs (activation, error of its digit). Numbers are
   integers of any common unit. *)
Definition block := (Z * list (Z * Z))%type.
Definition activations (b : block) : list Z := map fst (snd b).
Definition errors (b : block) : list Z := map snd (snd b).

(* The exponent of a block is the smallest with digits up to `digit`: a digit errs by half its unit,
   less than the largest activation by `digit`. *)
Definition rounded_block (size digit : Z) (b : block) : Prop :=
  Z.of_nat (length (snd b)) <= size /\ 0 <= fst b /\
  (exists x, In x (activations b) /\ Z.abs x = fst b) /\
  Forall (fun error => digit * Z.abs error <= fst b) (errors b).

Lemma squares_pos : forall list, 0 <= squares list.
Proof. induction list; simpl; nia. Qed.

Lemma squares_some : forall list x, In x list -> x * x <= squares list.
Proof.
  induction list as [| y list some]; intros x []; simpl.
  - subst. pose proof (squares_pos list). lia.
  - specialize (some x H). nia.
Qed.

Lemma squares_app : forall a b, squares (a ++ b) = squares a + squares b.
Proof. induction a as [| x a same]; intro b; simpl; [reflexivity |]. rewrite same. lia. Qed.

Lemma block_norm : forall size digit b, 0 <= digit -> rounded_block size digit b ->
  digit * digit * squares (errors b) <= size * squares (activations b).
Proof.
  intros size digit [top pairs] known [short [positive [[x [inside is_top]] small]]].
  cbn [fst snd] in *.
  assert (most : top * top <= squares (activations (top, pairs))).
  { rewrite <- is_top, Z.abs_square. apply squares_some, inside. }
  assert (each : digit * digit * squares (errors (top, pairs)) <=
    Z.of_nat (length (errors (top, pairs))) * (top * top)).
  { clear short inside most. unfold errors in *. cbn [snd] in *.
    induction (map snd pairs) as [| error rest induction]; [simpl; lia |].
    pose proof (Forall_inv small) as here. pose proof (Forall_inv_tail small) as later.
    cbn beta in here.
    specialize (induction later). cbn [squares length] in *.
    rewrite Nat2Z.inj_succ.
    assert (digit * digit * (error * error) <= top * top).
    { assert (0 <= digit * Z.abs error) by nia.
      rewrite <- (Z.abs_square error). nia. }
    nia. }
  unfold errors in each at 2. rewrite map_length in each. cbn [snd] in each. nia.
Qed.

Lemma blocks_norm : forall size digit row, 0 <= digit -> Forall (rounded_block size digit) row ->
  digit * digit * squares (concat (map errors row)) <=
  size * squares (concat (map activations row)).
Proof.
  intros size digit row known blocks. induction blocks as [| b row first rest induction];
    cbn [map concat]; [cbn [squares]; lia |].
  rewrite !squares_app. pose proof (block_norm size digit b known first). lia.
Qed.

Lemma dropped_norm : forall drop top dropped, 0 <= drop -> 0 <= top ->
  Forall (fun x => 2 ^ drop * Z.abs x <= top) dropped ->
  2 ^ (2 * drop) * squares dropped <= Z.of_nat (length dropped) * (top * top).
Proof.
  intros drop top dropped known positive small. replace (2 * drop) with (drop + drop) by lia.
  rewrite Z.pow_add_r by lia.
  assert (power : 0 < 2 ^ drop) by (apply Z.pow_pos_nonneg; lia).
  induction small as [| x dropped here later induction]; [cbn; lia |].
  cbn [squares length]. rewrite Nat2Z.inj_succ.
  assert (2 ^ drop * 2 ^ drop * (x * x) <= top * top).
  { assert (0 <= 2 ^ drop * Z.abs x) by nia.
    rewrite <- (Z.abs_square x).
    replace (2 ^ drop * 2 ^ drop * (Z.abs x * Z.abs x))
      with ((2 ^ drop * Z.abs x) * (2 ^ drop * Z.abs x)) by ring.
    apply Z.mul_le_mono_nonneg; assumption. }
  lia.
Qed.

(* What a schedule's numbers must satisfy: with digits up to `digit` in blocks of `size`, and up to
   k activations dropped that are 2^drop below the row's largest, 2^-bits of the norm is kept. *)
Definition digits_fine (size digit k drop bits : Z) : bool :=
  (1 <=? digit) && (0 <=? size) && (0 <=? k) && (0 <=? drop) && (0 <=? bits) &&
  (2 ^ (2 * bits) * (size * 2 ^ (2 * drop) + k * (digit * digit)) <=?
   digit * digit * 2 ^ (2 * drop)).

(* Law digits_norm: the digits of a row err, together and in the 2-norm, by at most 2^-bits of the
   row's norm, those of blocks that are dropped because they are so small among them: by Cauchy and
   Schwarz a linear then errs by at most 2^-bits |x| |w|, as when every activation is rounded to a
   format of that unit.
   Mirrors: err_gemm. *)
Theorem digits_norm : forall size digit k drop bits,
  digits_fine size digit k drop bits = true ->
  forall row dropped top, Forall (rounded_block size digit) row ->
  Z.of_nat (length dropped) <= k ->
  (exists x, In x (concat (map activations row)) /\ Z.abs x = top) ->
  Forall (fun x => 2 ^ drop * Z.abs x <= top) dropped ->
  2 ^ (2 * bits) * (squares (concat (map errors row)) + squares dropped) <=
  squares (concat (map activations row)) + squares dropped.
Proof.
  intros size digit k drop bits fine row dropped top blocks few [x [inside is_top]] small.
  unfold digits_fine in fine. rewrite !andb_true_iff, !Z.leb_le in fine.
  destruct fine as [[[[[known size_known] k_known] drop_known] bits_known] fine].
  pose proof (blocks_norm size digit row ltac:(lia) blocks) as kept.
  pose proof (dropped_norm drop top dropped drop_known ltac:(lia) small) as lost.
  pose proof (squares_some _ _ inside) as most. rewrite <- Z.abs_square, is_top in most.
  pose proof (squares_pos dropped) as positive.
  set (e := squares (concat (map errors row))) in *.
  set (a := squares (concat (map activations row))) in *.
  set (d := squares dropped) in *. set (q := digit * digit) in *.
  assert (power : 0 < 2 ^ (2 * drop)) by (apply Z.pow_pos_nonneg; lia).
  assert (power_bits : 0 < 2 ^ (2 * bits)) by (apply Z.pow_pos_nonneg; lia).
  set (u := 2 ^ (2 * drop)) in *. set (v := 2 ^ (2 * bits)) in *.
  assert (q_some : 1 <= q) by (unfold q; nia).
  assert (a_some : 0 <= a) by (apply Z.le_trans with (top * top); [nia | exact most]).
  assert (lost_all : u * d <= k * a).
  { apply Z.le_trans with (Z.of_nat (length dropped) * (top * top)); [exact lost |].
    apply Z.mul_le_mono_nonneg; lia. }
  clearbody e a d q u v. clear - kept lost_all fine power power_bits q_some a_some positive.
  apply Z.mul_le_mono_pos_l with (q * u); [nia |].
  apply Z.le_trans with (v * (size * u + k * q) * a).
  - replace (q * u * (v * (e + d))) with (v * (u * (q * e) + q * (u * d))) by ring.
    replace (v * (size * u + k * q) * a) with (v * (u * (size * a) + q * (k * a))) by ring.
    apply Z.mul_le_mono_nonneg_l; [lia |].
    apply Z.add_le_mono; apply Z.mul_le_mono_nonneg_l; lia.
  - apply Z.le_trans with (q * u * a); [apply Z.mul_le_mono_nonneg_r; lia |].
    apply Z.mul_le_mono_nonneg_l; [nia | lia].
Qed.

(* ---- counting steps *)

(* Units in 2^-24: binary32 to nearest, truncating tensor sums, binary16, binary16 sums. *)
Inductive rounding_class := R32 | T32 | R16 | T16.
Definition unit_of (c : rounding_class) : Z :=
  match c with R32 => 1 | T32 => 2 | R16 => 2 ^ 13 | T16 => 2 ^ 14 end.

Definition steps := list (rounding_class * nat).

(* The product of (1 + unit) in units of 2^-24, and how many factors it has. *)
Fixpoint growth_of (s : steps) : Z :=
  match s with
  | [] => 1
  | (c, n) :: rest => (2 ^ 24 + unit_of c) ^ Z.of_nat n * growth_of rest
  end.
Fixpoint count_of (s : steps) : Z :=
  match s with
  | [] => 0
  | (_, n) :: rest => Z.of_nat n + count_of rest
  end.
Lemma count_pos : forall s, 0 <= count_of s.
Proof. induction s as [| [c n] rest known]; simpl; lia. Qed.

(* The bound of `ours` is no larger than that of `stock`. *)
Definition bound_at_most (ours stock : steps) : bool :=
  growth_of ours * 2 ^ (24 * count_of stock) <=? growth_of stock * 2 ^ (24 * count_of ours).

Open Scope Q_scope.
Definition unit_q (c : rounding_class) : Q := unit_of c # (2 ^ 24).
(* A path with these steps on it. *)
Fixpoint path_of (x : Q) (s : list rounding_class) : sum_tree :=
  match s with
  | [] => Term x
  | c :: s => Rounded (unit_q c) (path_of x s)
  end.
Fixpoint flat (s : steps) : list rounding_class :=
  match s with
  | [] => []
  | (c, n) :: rest => repeat c n ++ flat rest
  end.

Fixpoint growth_q (s : list rounding_class) : Q :=
  match s with
  | [] => 1
  | c :: rest => growth_q rest * (1 + unit_q c)
  end.

Lemma growth_path : forall x s, growth (path_of x s) = growth_q s.
Proof.
  intros x s. induction s as [| c s same]; simpl; [reflexivity | rewrite same; reflexivity].
Qed.

Lemma growth_flat : forall s,
  growth_q (flat s) * inject_Z (2 ^ (24 * count_of s)) == inject_Z (growth_of s).
Proof.
  induction s as [| [c n] s same]; [reflexivity |]. cbn [count_of growth_of flat].
  pose proof (count_pos s). induction n as [| n more].
  - cbn [repeat app]. change (Z.of_nat 0) with 0%Z.
    rewrite Z.add_0_l, Z.pow_0_r, Z.mul_1_l. exact same.
  - rewrite Nat2Z.inj_succ, Z.pow_succ_r by lia.
    replace (24 * (Z.succ (Z.of_nat n) + count_of s))%Z
      with (24 + 24 * (Z.of_nat n + count_of s))%Z by lia.
    rewrite Z.pow_add_r by lia. cbn [repeat app growth_q].
    rewrite <- Z.mul_assoc, !inject_Z_mult.
    rewrite inject_Z_mult in more. rewrite <- more.
    assert (factor : (1 + unit_q c) * inject_Z (2 ^ 24) == inject_Z (2 ^ 24 + unit_of c)).
    { destruct c; vm_compute; reflexivity. }
    rewrite <- factor. ring.
Qed.

(* Law bound_compared: where the comparison of two operations' steps says so, the normwise bound of
   the first is no larger than that of the second.
   Mirrors: err_gemm, err_attn, err_prefill. *)
Theorem bound_compared : forall ours stock, bound_at_most ours stock = true ->
  forall x, growth (path_of x (flat ours)) - 1 <= growth (path_of x (flat stock)) - 1.
Proof.
  intros ours stock decided x. unfold bound_at_most in decided. apply Z.leb_le in decided.
  rewrite !growth_path.
  assert (positive : forall s, (0 < 2 ^ (24 * count_of s))%Z).
  { intro s. apply Z.pow_pos_nonneg; [lia |].
    pose proof (count_pos s). lia. }
  pose proof (growth_flat ours) as of_ours. pose proof (growth_flat stock) as of_stock.
  pose proof (positive ours) as some_ours. pose proof (positive stock) as some_stock.
  rewrite Zlt_Qlt in some_ours, some_stock. rewrite Zle_Qle, !inject_Z_mult in decided.
  rewrite <- of_ours, <- of_stock in decided.
  set (p := inject_Z (2 ^ (24 * count_of ours))) in *.
  set (q := inject_Z (2 ^ (24 * count_of stock))) in *.
  assert (both : growth_q (flat ours) * (p * q) <= growth_q (flat stock) * (p * q)).
  { setoid_replace (growth_q (flat ours) * (p * q)) with (growth_q (flat ours) * p * q) by ring.
    setoid_replace (growth_q (flat stock) * (p * q)) with (growth_q (flat stock) * q * p) by ring.
    exact decided. }
  apply Qmult_le_r in both; [lra |]. change (0 < p) in some_ours. change (0 < q) in some_stock. nra.
Qed.
Close Scope Q_scope.
Open Scope Z_scope.

(* ---- use *)

Open Scope Q_scope.
Example rounding_used := rounding _ _ (computes_rounded (1 # 2) (Term 3) 3 4 (computes_term 3)
  ltac:(discriminate) ltac:(discriminate)).
Close Scope Q_scope.
Example digits_norm_used := digits_norm 128 32639 37888 21 11 eq_refl
  [(2 ^ 30, [(2 ^ 30, 30000); (-1, 7)])] [512] (2 ^ 30)
  ltac:(repeat constructor; cbn; try lia; exists (2 ^ 30); cbn; auto) ltac:(cbn; lia)
  (ex_intro _ (2 ^ 30) (conj (or_introl eq_refl) eq_refl)) ltac:(repeat constructor; cbn; lia).
Example bound_compared_used := bound_compared [(R32, 21%nat)] [(R32, 5%nat); (R16, 1%nat)] eq_refl.

(* Blocks of 256 would not be as near as binary16, and a step of binary16 more is more. *)
Example digits_in_larger_blocks : digits_fine 256 32639 37888 21 11 = false.
Proof. reflexivity. Qed.
Example steps_counted : bound_at_most [(R16, 2%nat)] [(R32, 50%nat); (R16, 1%nat)] = false.
Proof. vm_compute. reflexivity. Qed.
